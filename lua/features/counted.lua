-- counted.lua: how many events of a partition were acknowledged, and how many gap.lua has found missing: two fields of
-- the levels hash (see freed.lua). Redis's own count of what a group has read is wrong after a failover.
-- include: library

local ACKED, MISSING = '\nacked', '\nmissing'

-- count_acked must follow the XACK in the same step. It cannot fail: levels of another type loses only this count.
local function count_acked(levels, n)
  local reply = n > 0 and pcall('HINCRBY', levels, ACKED, int(n))
  if type(reply) == 'table' then is_wrong_type(reply) end
end

-- dead_letter adds a letter: the ID of the entry that it is about, the reason, and
-- the entry's body. About `keep` letters are kept. The caller has proven the type of the stream.
local function dead_letter(stream, keep, id, reason, body)
  append(stream, {'XADD', stream, 'MAXLEN', '~', int(keep), '*', 'event', id, 'reason', reason, 'body', body})
end
