-- prelude.lua: what every script shares. It stands first in each composed script.
-- Read sliding-log.lua next (how one algorithm counts), then fold.lua.

-- Upvalues are cheaper than globals, and these run for every event.
local call, pcall = redis.call, redis.pcall
local match, find, sub, format, floor = string.match, string.find, string.sub, string.format, math.floor
local tonumber = tonumber
local KEYS, ARGV = KEYS, ARGV

-- Integers leave Lua through int(), exact below 2^53: `..` and tostring round at
-- 14 digits. ('%.0f' is exact too, and takes twice as long.)
local function int(x) return format('%d', x) end

-- time is int of a time, and next_id the ID of a stream's next entry at it: many
-- counters of one run are asked for the same.
local time_ms, time_text, id_ms, id_text
local function time(ms)
  if ms ~= time_ms then time_ms, time_text = ms, int(ms) end
  return time_text
end
local function next_id(ms)
  if ms ~= id_ms then id_ms, id_text = ms, int(ms) .. '-*' end
  return id_text
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

-- A counter lives for at least this many ms. Keys expire by the server's clock:
-- under one that is handed in, none may end before its window has passed.
local LEAST = ARGV[1] ~= '' and 600000 or 0

-- What stands in a counter's place need not be ours: another type, text where
-- numbers belong, a time that no clock has reached. It is unreadable: it counts
-- as empty, and the next write takes its place. So whatever is read of a counter is
-- held against bounds, and nothing that was read fails after the first write.
local DAY = 86400000 -- ms that the newest event of a counter may be ahead of the clock
local unreadable = 0 -- counters found so

-- foreign tells that an error was for a key of another type; any other ends the script.
local function foreign(reply)
  if sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  return true
end

-- refused tells that a stream did not take an entry because of its IDs. Any other
-- error (no memory, no replicas) ends the script: nothing may be removed for it.
local function refused(reply)
  if not reply.err then return false end
  if not find(reply.err, ' ID', 1, true) then error(reply) end
  return true
end

-- renew makes a stream take entries again in which somebody has put the greatest
-- ID there is, and keeps what else stands in it.
local function renew(stream)
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
--                             of what any window can hold; one that is unreadable
--                             is empty
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

-- state_of opens a counter for more than one look: its state, the clock, never
-- below the newest event's, and used (window -> units). The slots that are not
-- filled here are for who asked: a table that grows costs more than one that is
-- made large enough.
local function state_of(rule, counter, now)
  local last, total = rule.algo.open(counter, now, rule)
  local used, of = {0}, rule.algo.used
  local s = {false, rule = rule, counter = counter, now = last > now and last or now, last = last, total = total, used = used,
             spent = 0, at = nil, key = nil, text = nil, near = nil, crossed = nil}
  for w = 1, rule.n do used[w] = of(s, w) end
  return s
end

-- standing puts into a reply, from n + 1 on, where a counter stands in each
-- window: the units used, when the first of them come back and when all have (ms,
-- 0 where none are used), leaving out the last `less` units. It gives the new n.
-- (One by one: several at once are set from the last to the first, and the list
-- would grow from its far end.)
local function standing(reply, n, s, less)
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
-- A rule is: algorithm, shadow (0|1), tune, span, spec, number of windows,
-- then per window: ms, limit, lowest.
--   span    the longest window in ms: what a counter keeps
--   tune    one number for the algorithm; its file says what
--   spec    the levels as text, read only when one is near (levels.lua)
--   lowest  the lowest threshold of the window, in units
-- `floor` is the lowest of all: a key below it cannot stand at any level.
local function rule_at(i)
  local windows, lowest = number(i + 5, 1), number(i + 8, 1)
  local r = {algo = algorithms[ARGV[i]], shadow = ARGV[i + 1] == '1', tune = number(i + 2, 0),
             span = number(i + 3, 1), spec = ARGV[i + 4], n = windows, floor = lowest,
             ms = {number(i + 6, 1)}, limit = {number(i + 7, 1)}, lowest = {lowest}}
  if not r.algo then error('unknown algorithm ' .. ARGV[i]) end
  i = i + 9
  for w = 2, windows do
    lowest = number(i + 2, 1)
    r.ms[w], r.limit[w], r.lowest[w] = number(i, 1), number(i + 1, 1), lowest
    if lowest < r.floor then r.floor = lowest end
    i = i + 3
  end
  return r, i
end
