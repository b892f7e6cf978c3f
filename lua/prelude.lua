-- prelude.lua: what every script shares: numbers, the clock, corrupt data, and the state
-- of a counter. Read sliding-log.lua next (how one algorithm counts), then fold.lua.
--
-- A file names those that it needs in a line "-- include: ...", and lua.go composes a
-- script from the files of the algorithms of its rules and the operation's, each
-- after what it includes.

-- Upvalues are cheaper than globals, and these run for every event.
local call, pcall = redis.call, redis.pcall
local match, find, sub, format, floor = string.match, string.find, string.sub, string.format, math.floor
local tonumber = tonumber
local KEYS, ARGV = KEYS, ARGV

-- Integers leave Lua through int(), exact below 2^53: `..` and tostring round at
-- 14 digits. ('%.0f' is exact too, and takes twice as long.)
local function int(x) return format('%d', x) end

-- ms_text is int of a time, and next_id the ID of a stream's next entry at it. Each keeps
-- its last result, as many counters of one run need the same.
local text_of_ms, last_text, id_of_ms, last_id
local function ms_text(ms)
  if ms ~= text_of_ms then text_of_ms, last_text = ms, int(ms) end
  return last_text
end
local function next_id(ms)
  if ms ~= id_of_ms then id_of_ms, last_id = ms, int(ms) .. '-*' end
  return last_id
end

-- number reads ARGV[i], which must be an integer >= least; what is no number at
-- all fails in the arithmetic, which is cheaper than asking. Nothing has been
-- written when it fails.
local function number(i, least)
  local n = ARGV[i] + 0
  if n < least or n >= 9007199254740992 or n % 1 ~= 0 then
    error('ARGV[' .. i .. '] is ' .. ARGV[i] .. ', expected an integer >= ' .. least)
  end
  return n
end

-- clock reads the time in ms, once per script: TIME moves within a script on
-- Redis 7.0. ARGV[1] stands in for it in tests.
local function clock()
  if ARGV[1] ~= '' then return number(1, 0) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A counter expires after at least this many ms. Keys expire by the server's clock:
-- under a clock that is handed in, none may expire before its window has passed.
local MIN_EXPIRY_MS = ARGV[1] ~= '' and 600000 or 0

-- A counter's key may hold what these scripts have not written: another type, text
-- where numbers belong, a time that no clock has reached. Such a counter is corrupt: it
-- counts as empty, and the next write replaces it. So whatever is read of a counter is
-- compared with bounds, and nothing that was read fails after the first write.
local DAY = 86400000 -- ms that the newest event of a counter may be ahead of the clock
local corrupt_counters = 0 -- how many this run found

-- is_wrong_type is true for the error of a key of another type; any other ends the script.
local function is_wrong_type(reply)
  if sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  return true
end

-- refused is true where a stream did not take an entry because of its IDs. Any other
-- error (no memory, no replicas) ends the script: nothing may be removed because of it.
local function refused(reply)
  if not reply.err then return false end
  if not find(reply.err, ' ID', 1, true) then error(reply) end
  return true
end

-- recreate makes a stream take entries again to which somebody has added the greatest
-- ID there is. It keeps the other entries.
local function recreate(stream)
  local kept = call('XRANGE', stream, '-', '9007199254740991')
  call('UNLINK', stream)
  for _, e in ipairs(kept) do
    if #e[2] <= 100 then call('XADD', stream, e[1], unpack(e[2])) end
  end
end

-- algorithms: name in a rule -> its functions; one file each.
--
-- A counter's state is two values, not a table, as fold opens one per event:
--   last   ms of the newest event in it, 0 where there is none
--   total  whatever else the algorithm keeps
--
--   open(counter, now, rule)  reads the state: last, total, and an upper bound
--                             of what any window can hold; a corrupt counter is
--                             empty
--   add(counter, rule, last, total, ms, id, count)  writes `count` more units at
--                             `ms` and gives the new state. `count` is text as it
--                             came or an integer from int(); `id` is the event's
--                             stream ID, nil for a check. It is called after the
--                             first write, so it may not fail: open has proven
--                             the type
-- and over the state s that state_of makes:
--   used(s, w)                the units in window w of the rule
--   free_at(s, w, n)          when, with no more traffic, window w will hold at
--                             most n units, of which it holds more now
--   give_back(s, w, n)        takes the oldest n units of w, the longest window, out
--                             of the counter, of which it holds as many; it gives
--                             how many it took. It writes
local algorithms = {}

-- state_of opens a counter for more than one look:
--   rule, counter, last, total  as above
--   now   ms by the clock, never below the newest event's
--   used  window -> units in it
-- The other fields are for check.lua: a table that grows costs more than one that is
-- made large enough.
local function state_of(rule, counter, now)
  local last, total = rule.algo.open(counter, now, rule)
  local used, of = {0}, rule.algo.used
  local s = {false, rule = rule, counter = counter, now = last > now and last or now,
             last = last, total = total, used = used,
             charged = 0, partition_at = nil, key = nil, text = nil, near = nil, crossed = nil}
  for w = 1, rule.n do used[w] = of(s, w) end
  return s
end

-- window_states puts into a reply, from n + 1 on, three integers per window of a counter:
--   used          units, without the last `less` ones
--   next_free_ms  when the first of them is free again; 0 where none are used
--   reset_ms      when all of them are; 0 where none are used
-- It gives the new n. (One by one: several at once are set from the last to the first,
-- and the list would grow from its far end.)
local function window_states(reply, n, s, less)
  local rule = s.rule
  local free_at, all = rule.algo.free_at, s.used
  for w = 1, rule.n do
    local used = all[w]
    reply[n + 1] = used - less
    if used > less then
      reply[n + 2] = free_at(s, w, used - 1)
      reply[n + 3] = free_at(s, w, 0)
    else
      reply[n + 2] = 0
      reply[n + 3] = 0
    end
    n = n + 3
  end
  return n
end

-- rule_at reads the rule that starts at ARGV[i]; returns it and the next index.
-- A rule is what one counter counts: algorithm, decides, setting, span, spec, number of
-- windows, then per window: ms, limit, lowest.
--   decides how many of the windows decide, which stand first. The others are those
--           of shadow rules on the same count, which never deny
--   span    the longest window in ms: what a counter keeps
--   setting one number for the algorithm: trim_every_ms for the logs, how many buckets
--           for sliding-buckets; the others do not use it
--   spec    the levels as text, read only when one is near (levels.lua)
--   lowest  the lowest threshold of the window, in units
-- lowest_threshold is the lowest of all windows: a key below it has no level.
local function rule_at(i)
  local windows, lowest = number(i + 5, 1), number(i + 8, 1)
  local r = {algo = algorithms[ARGV[i]], decides = number(i + 1, 0), setting = number(i + 2, 0),
             span = number(i + 3, 1), spec = ARGV[i + 4], n = windows, lowest_threshold = lowest,
             ms = {number(i + 6, 1)}, limit = {number(i + 7, 1)}, lowest = {lowest}}
  if not r.algo then error('unknown algorithm ' .. ARGV[i]) end
  i = i + 9
  for w = 2, windows do
    lowest = number(i + 2, 1)
    r.ms[w], r.limit[w], r.lowest[w] = number(i, 1), number(i + 1, 1), lowest
    if lowest < r.lowest_threshold then r.lowest_threshold = lowest end
    i = i + 3
  end
  return r, i
end
