-- freed.lua: marks a partition whose keys got units back before their time.
--
-- Processes answer denied checks from memory (check/denials.go), because a window frees units only with time. An
-- operation that gives units back earlier changes the partition's mark. Then the processes forget their denials.
--
-- The mark is a number in one field of the levels hash, and changes each time. (No key
-- begins with a line feed, and the fields of versions have two digits after theirs.)
-- include: library

local FREED = '\nfreed'

-- read_mark returns a mark, 0 if there is none.
local function read_mark(levels, field)
  local n = tonumber(call('HGET', levels, field) or nil)
  if not n or n % 1 ~= 0 or n < 0 or n >= 4503599627370496 then n = 0 end
  return n
end

-- mark_freed is called among the writes, after the type of levels was proven.
local function mark_freed(levels) call('HSET', levels, FREED, int(read_mark(levels, FREED) + 1)) end
