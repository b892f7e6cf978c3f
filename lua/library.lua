-- library.lua: the head of the library, which all operations share: numbers, the clock, and what they do about data
-- that none of them wrote. Read state.lua next (what a key's count is made of), then operations/check.lua.
--
-- source.go composes the files in two ways:
--   a library of Redis Functions  all files, loaded once per server. What stands outside of functions runs
--                                 once, and lives on from call to call
--   a script for EVALSHA          the files that one operation needs, for a server that takes no functions. All
--                                 of it runs at each call
-- A file names those that it needs in a line "-- include: ...". The files in meters/ and operations/ are blocks
-- of their own; what the others define at their top level is seen by those that follow.
--
-- A call must leave nothing behind that changes the next one. So a variable that lives on is set anew at the
-- start of a call (run_operation), not at its end: an error ends a call midway.

-- Upvalues are cheaper than globals, and these run for every event.
local call, pcall = redis.call, redis.pcall
local match, find, sub, format = string.match, string.find, string.sub, string.format
local floor, max, min, tonumber = math.floor, math.max, math.min, tonumber

local operations = {} -- name -> function of the operation; one file each, in operations/

-- What a call keeps while it runs.
local KEYS, ARGV
-- What is written expires after at least this many ms. Keys expire by the server's clock:
-- under a clock that is handed in, none may expire before its window has passed.
local MIN_EXPIRY_MS
-- refusal is the reply of a call that must end because of what it read: an error that begins with a code
-- of ours, which Go compares as a prefix. It is returned, as a raised one begins with Redis's words. Each
-- operation returns it once all keys are read, before it writes anything.
local refusal
local corrupt_counters -- how many meters were found corrupt
local used_states      -- how many states of keys are in use (state.lua)
-- trace is the W3C trace context, nil where the call is not traced: traceparent, a space and tracestate, which
-- may be empty. It goes with the transitions (levels.lua).
local trace

-- run_operation runs the operation that the last argument names.
local function run_operation(keys, args)
  KEYS, ARGV = keys, args
  local last = #args
  local operation = operations[args[last]]
  if not operation then return {err = 'ERR no operation ' .. tostring(args[last])} end
  args[last] = nil
  MIN_EXPIRY_MS = args[1] ~= '' and 600000 or 0
  refusal, corrupt_counters, used_states, trace = nil, 0, 0, nil
  return operation()
end

-- Integers leave Lua through int(), exact below 2^53: `..` and tostring round at
-- 14 digits. ('%.0f' is exact too, and takes twice as long.)
local function int(x) return format('%d', x) end

-- ms_text is int of a time, and next_id the ID of a stream's next entry at it. Each keeps
-- its last result, as many meters of one call need the same.
local text_of_ms, last_text, id_of_ms, last_id
local function ms_text(ms)
  if ms ~= text_of_ms then text_of_ms, last_text = ms, format('%d', ms) end
  return last_text
end
local function next_id(ms)
  if ms ~= id_of_ms then id_of_ms, last_id = ms, format('%d-*', ms) end
  return last_id
end

-- number reads ARGV[i], which must be an integer >= least; what is no number at
-- all fails in the arithmetic, which is cheaper than asking. Nothing has been
-- written when it fails.
local function number(i, least)
  local n = ARGV[i] + 0
  if n >= least and n < 9007199254740992 and n % 1 == 0 then return n end
  error('ARGV[' .. i .. '] is ' .. ARGV[i] .. ', expected an integer >= ' .. least)
end

-- clock reads the time in ms, once per call: TIME moves within a script on
-- Redis 7.0. ARGV[1] stands in for it in tests.
local function clock()
  if ARGV[1] ~= '' then return number(1, 0) end
  local t = call('TIME')
  local us = t[2] + 0
  return t[1] * 1000 + (us - us % 1000) / 1000
end

-- A meter's key may hold what the library has not written: another type, text
-- where numbers belong, a time that no clock has reached. Such a meter is corrupt: it
-- counts as empty, and the next write replaces it. So whatever is read of a meter is
-- compared with bounds, and nothing that was read fails after the first write.
local DAY = 86400000 -- ms that the newest event of a meter may be ahead of the clock

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

-- user_key takes the user's key out of the name of a key in Redis, prefix:{partition}:form:key.
local function user_key(name) return match(name, '^[^{]*{%d+}:[^:]*:(.*)$') end
