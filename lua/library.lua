-- library.lua: the start of the library, which all operations share: numbers, the clock, and the handling of corrupt
-- and foreign data. Read state.lua next (the state of a key), then operations/check.lua.
--
-- library.go composes the files in two ways:
--   a library of Redis Functions  all files, loaded once per server. Code outside of functions runs once, and
--                                 its variables keep their values from call to call
--   a script for EVALSHA          the files that one operation needs, for a server without Redis Functions. All
--                                 of the code runs at each call
-- A file names the files that it needs in a line "-- include: ...". Each file in meters/ and operations/ is a
-- separate block. The files that follow see what the other files define at their top level.
--
-- A call must leave nothing behind that changes the next call. So a variable that is kept between calls is set again
-- at the start of a call (run_operation), not at its end, because an error can end a call midway.

-- Upvalues are cheaper than globals, and these functions run for every event.
local call, pcall = redis.call, redis.pcall
local match, find, sub, format = string.match, string.find, string.sub, string.format
local floor, max, min, tonumber = math.floor, math.max, math.min, tonumber

local operations = {} -- name -> function of the operation; one file each, in operations/

-- The variables of the current call.
local KEYS, ARGV
-- Each key that is written expires after at least this many ms. Keys expire by the server's clock.
-- If a call passes its own clock, no key may expire before its window has passed.
local MIN_EXPIRY_MS
-- refusal is the reply of a call that must end because of what it read: an error that begins with a code
-- of this library, which Go compares as a prefix. It is returned and not raised, because a raised error begins
-- with Redis's words. Each operation returns it after it has read all keys, and before it writes anything. (Only
-- fold.lua also returns one after its writes: see acked.)
local refusal
local corrupt_counters = {} -- the names of the meters that were found corrupt
local clock_ms              -- the time, once clock was called
local used_states           -- how many states of keys are in use (state.lua)
-- trace is the W3C trace context, nil if the call is not traced: traceparent, a space and tracestate, which
-- may be empty. It is written with the transitions (levels.lua).
local trace

-- run_operation runs the operation that the last argument names. Its reply ends with corrupt_counters, if it has any.
local function run_operation(keys, args)
  KEYS, ARGV = keys, args
  local last = #args
  local operation = operations[args[last]]
  if not operation then return {err = 'ERR no operation ' .. tostring(args[last])} end
  args[last] = nil
  MIN_EXPIRY_MS = args[1] ~= '' and 600000 or 0
  refusal, used_states, trace = nil, 0, nil
  if corrupt_counters[1] then corrupt_counters = {} end
  local reply = operation()
  if corrupt_counters[1] then reply[#reply + 1] = corrupt_counters end
  return reply
end

-- int formats every integer that leaves Lua. It is exact below 2^53, but `..` and tostring round
-- at 14 digits. ('%.0f' is exact too, and takes twice as long.)
local function int(x) return format('%d', x) end

-- ms_text formats a time, and next_id returns the ID of a stream's next entry at a time. Each keeps
-- its last result, because many meters of one call need the same one.
local text_of_ms, last_text, id_of_ms, last_id
local function ms_text(ms)
  if ms ~= text_of_ms then text_of_ms, last_text = ms, format('%d', ms) end
  return last_text
end
local function next_id(ms)
  if ms ~= id_of_ms then id_of_ms, last_id = ms, format('%d-*', ms) end
  return last_id
end

-- number reads ARGV[i], which must be an integer >= least. A text that is no number fails
-- in the arithmetic, which is cheaper than a check. Nothing has been written when it fails.
local function number(i, least)
  local n = ARGV[i] + 0
  if n >= least and n < 9007199254740992 and n % 1 == 0 then return n end
  error('ARGV[' .. i .. '] is ' .. ARGV[i] .. ', expected an integer >= ' .. least)
end

-- clock returns the time in ms. An operation calls it only once, because on Redis 7.0 TIME
-- changes while a script runs. In tests, ARGV[1] is the time.
local function clock()
  if ARGV[1] ~= '' then
    clock_ms = number(1, 0)
  else
    local t = call('TIME')
    local us = t[2] + 0
    clock_ms = t[1] * 1000 + (us - us % 1000) / 1000
  end
  return clock_ms
end

-- A meter's key may hold data that the library has not written: another type, text instead of numbers, a time that no
-- clock has reached. Such a meter is corrupt: it counts as empty, and the next write replaces it. So every value that
-- is read from a meter is compared with bounds, and no value that was read can cause an error after the first write.
local DAY = 86400000 -- ms that the newest event of a meter may be ahead of the clock

-- is_wrong_type returns true for the error of a key of another type. Any other error ends the script.
local function is_wrong_type(reply)
  if sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  return true
end

-- refused returns true if a stream did not accept an entry because of its IDs. Any other
-- error (no memory, no replicas) ends the script: such an error must not lead to a removal.
local function refused(reply)
  if not reply.err then return false end
  if not find(reply.err, ' ID', 1, true) then error(reply) end
  return true
end

-- recreate makes a stream accept entries again after somebody has added an entry with the
-- greatest possible ID. It keeps the other entries, except those with more than 50 fields.
local function recreate(stream)
  local kept = call('XRANGE', stream, '-', '9007199254740991')
  call('UNLINK', stream)
  for _, e in ipairs(kept) do
    if #e[2] <= 100 then call('XADD', stream, e[1], unpack(e[2])) end
  end
end

-- append adds an entry to a stream, whatever its IDs are. The caller has proven the type of the stream.
local function append(stream, entry)
  if refused(pcall(unpack(entry))) then
    recreate(stream)
    call(unpack(entry))
  end
end

-- pairs_of makes a table of a reply of names and values.
local function pairs_of(reply)
  local t = {}
  for i = 1, #reply, 2 do t[reply[i]] = reply[i + 1] end
  return t
end

-- user_key returns the user's key from the name of a key in Redis, prefix:{partition}:form:key.
local function user_key(name) return match(name, '^[^{]*{%d+}:[^:]*:(.*)$') end
