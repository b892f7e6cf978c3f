-- prelude.lua: what every script shares: numbers, the clock, corrupt data, and the state
-- of a counter. Read sliding-log.lua next (how one algorithm counts), then fold.lua.
--
-- A file names those that it needs in a line "-- include: ...", and source.go composes a
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

-- carry.lua leaves a marker in the place of a counter that it carried to another algorithm:
-- 'carried:' and its name. A process that has not read the changed rules yet meets it, and
-- must not take the key for one that has spent nothing: the script ends, before it has
-- written anything, and the caller asks again under that algorithm (windows/moved.go).
-- carry.lua itself sets `carrying`, and reads a marker as an empty counter.
local carrying = false
-- is_marker tells whether a counter is one; of is the set of algorithms that count, nil for all.
local function is_marker(counter, of)
  local text = pcall('GETRANGE', counter, '0', '39')
  return not text.err and sub(text, 1, 8) == 'carried:' and (not of or of[sub(text, 9)] == true)
end
local function was_carried(counter)
  if not is_marker(counter) then return false end
  if not carrying then error('CARRIED a counter is kept under another algorithm now') end
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

-- user_key takes the key out of a counter's name, prefix:{partition}:form:key.
local function user_key(counter) return match(counter, '^[^{]*{%d+}:[^:]*:(.*)$') end

-- Units of a key that are reserved (reserve.lua) count as used until the reservation is
-- settled. A counter of such a key is marked; how many they are stands in one field of
-- the levels hash, so that a key without reservations pays nothing:
--   "\n\n" and the key -> units;first;till;c|f
--   first, till  when the first and the last of the reservations expire, in ms
--   c|f          what becomes of units then: they are charged, or free; where it differs, c, and units begin with a
--                zero (processes of before, which knew no difference, count them then)
--
-- marks: counter -> true, or what is reserved, once that was read; nil while no counter of
-- the run is marked. open sets it, and add writes the mark where it is set.
local marks

-- read_reserved gives what is reserved of a key, nil where nothing is: units, first, till, policy, frees and
-- charges, whether any units are free then and whether any are charged, and rest, for how long yet.
local function read_reserved(levels, key, now)
  local text = call('HGET', levels, '\n\n' .. key)
  if not text or #text > 64 then return end
  local zero, units, first, till, policy = match(text, '^(0?)(%d+);(%d+);(%d+);([cf])$')
  units, first, till = tonumber(units or nil), tonumber(first or nil), tonumber(till or nil)
  if not units or units < 1 or units >= 4503599627370496 or till > now + 2 * DAY then return end
  if zero == '0' then policy = 'm' end
  return {units = units, first = first, till = till, policy = policy, frees = policy ~= 'c', charges = policy ~= 'f',
          rest = math.max(0, till - now)}
end

-- expiry gives how long a counter lives that is written now, in ms, as text: at least
-- `ms`, and until its reservations are over.
local function expiry(counter, ms)
  local r = marks and marks[counter]
  return int(math.max(MIN_EXPIRY_MS, ms) + (r and r ~= true and r.rest or 0))
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
-- Both keep the mark of reservations: open sets marks[counter] where it stands (also
-- of a counter whose units have all left), and add writes it where that is set.
-- and over the state s that state_of makes:
--   used(s, w)                the units in window w of the rule
--   free_at(s, w, n)          when, with no more traffic, window w will hold at
--                             most n units, of which it holds more now
--   give_back(s, w, n)        takes the oldest n units of w, the longest window, out
--                             of the counter, of which it holds as many; it gives
--                             how many it took. It writes, and the newest event's
--                             time stays
-- and, where units do not stay for the whole window,
--   leaves(s, w, t, units, n) when at most n of so many that are charged at t are left in it: the earliest that it
--                             can be; without units: until when all of them count, or earlier
-- and, where a rule of it has more arguments than rule_at knows:
--   more(rule, i)             reads them from ARGV[i] on, and gives the next index
local algorithms = {}

-- used_in gives the units in window w, charged and reserved. In an in-flight window
-- those alone count that are reserved.
local function used_in(s, w)
  local rule, r = s.rule, s.reserved
  if rule.in_flight and rule.in_flight[w] then return r and r.units or 0 end
  if r then return rule.algo.used(s, w) + r.units end
  return rule.algo.used(s, w)
end

-- settled_by is t, when a reservation ends. Where it has ended, and was not settled yet, it is as long from now as it
-- has been waited for: a worker settles it within ms, and perhaps there is none.
local function settled_by(s, t)
  return t > s.now and t or s.now + math.max(1, math.min(1000, s.now - t))
end

-- free_at gives when, with no more traffic, window w will hold at most n units, of which
-- it holds more now. Where reservations must end for it, it is the earliest that it can be.
local function free_at(s, w, n)
  local rule, r = s.rule, s.reserved
  if not r then return rule.algo.free_at(s, w, n) end
  local left = n > 0 and r.first or r.till
  if rule.in_flight and rule.in_flight[w] then return settled_by(s, left) end
  local still = n >= r.units and rule.algo.free_at(s, w, n - r.units) -- with all of them in it
  if still and not r.frees then return still end
  if n > 0 and r.frees then
    if rule.algo.used(s, w) > n then left = math.max(left, rule.algo.free_at(s, w, n)) end
  else
    if r.charges then left = rule.algo.leaves and rule.algo.leaves(s, w, left, r.units, n) or left + rule.ms[w] end
    if n == 0 and rule.algo.used(s, w) > 0 then left = math.max(left, rule.algo.free_at(s, w, 0)) end
  end
  left = settled_by(s, left)
  return still and math.min(still, left) or left
end

-- penalty_of gives until when its key is denied whatever its windows hold (penalty.lua); 0: it is not.
local function penalty_of(s)
  if not s.rule.algo.penalty then return 0 end
  local part, state = s.rule.algo.penalty(s)
  return part and state.total.ends or 0
end

-- state_of opens a counter for more than one look; `levels` is the levels hash of its
-- partition:
--   rule, counter, last, total  as above
--   now   ms by the clock, never below the newest event's
--   used  window -> units in it, the reserved ones too
--   reserved  what is reserved of its key, as read_reserved gives it; nil: nothing
-- The other fields are for check.lua: a table that grows costs more than one that is
-- made large enough.
local function state_of(rule, counter, now, levels)
  local last, total = rule.algo.open(counter, now, rule)
  local used = {0}
  local s = {false, rule = rule, counter = counter, now = last > now and last or now,
             last = last, total = total, used = used,
             charged = 0, partition_at = nil, key = nil, text = nil, near = nil, crossed = nil, reserved = nil}
  if marks and marks[counter] and levels then
    local r = read_reserved(levels, user_key(counter), now)
    -- Nobody may be there to settle what has expired. Charged then, it would have left the windows.
    if r and r.till + (r.charges and rule.span or 0) <= now then r = nil end
    s.reserved = r
    marks[counter] = s.reserved -- where nothing is reserved any more, the next write takes the mark off
  end
  for w = 1, rule.n do used[w] = used_in(s, w) end
  return s
end

-- keep has a counter that is not written now live as long as its windows look back: who wrote it last may
-- have had shorter ones.
local function keep(s)
  local function at_least(name, rule)
    call('PEXPIRE', name, int(math.max(MIN_EXPIRY_MS, rule.span + rule.setting)), 'GT')
  end
  if not s.rule.parts then return at_least(s.counter, s.rule) end
  for p, part in ipairs(s.rule.parts) do at_least(s.total[p].counter, part) end
end

-- window_states puts into a reply, from n + 1 on, three integers per window of a counter:
--   used          units, without the last `less` ones
--   next_free_ms  when the first of them is free again; 0 where none are used
--   reset_ms      when all of them are; 0 where none are used
-- (Of an in-flight window all are there: what is charged later in a run is not in it.)
-- It gives the new n. (One by one: several at once are set from the last to the first,
-- and the list would grow from its far end.)
local function window_states(reply, n, s, less)
  local rule = s.rule
  local all = s.used
  for w = 1, rule.n do
    local used = all[w]
    local shown = used - less
    if rule.in_flight and rule.in_flight[w] then shown = used end
    reply[n + 1] = shown
    if shown > 0 then
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

local MOST_MS = 4503599627370496 -- 2^52, above any window

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
-- The ms of an in-flight window stand below zero.
-- lowest_threshold is the lowest of all windows: a key below it has no level.
local function rule_at(i)
  local windows, lowest, ms = number(i + 5, 1), number(i + 8, 1), ARGV[i + 6] + 0
  local r = {algo = algorithms[ARGV[i]], decides = number(i + 1, 0), setting = number(i + 2, 0),
             span = number(i + 3, 1), spec = ARGV[i + 4], n = windows, lowest_threshold = lowest,
             ms = {ms}, in_flight = nil, limit = {number(i + 7, 1)}, lowest = {lowest}}
  if not r.algo then error('unknown algorithm ' .. ARGV[i]) end
  if ms < 1 then r.in_flight, r.ms[1] = {true}, -number(i + 6, -MOST_MS) end
  i = i + 9
  for w = 2, windows do
    lowest = number(i + 2, 1)
    r.ms[w], r.limit[w], r.lowest[w] = ARGV[i] + 0, number(i + 1, 1), lowest
    if r.ms[w] < 1 then
      r.in_flight = r.in_flight or {}
      r.in_flight[w], r.ms[w] = true, -number(i, -MOST_MS)
    end
    if lowest < r.lowest_threshold then r.lowest_threshold = lowest end
    i = i + 3
  end
  if r.algo.more then i = r.algo.more(r, i) end
  return r, i
end
