-- quick-lease-sliding-log.lua: the common renewal of a lease, cheap. A lease that stands, of which units were
-- used, that is to have as many and more as count now, of a key below every level with a healthy log, is
-- renewed here as lease-units.lua would. Any other is left untouched, and the caller asks
-- lease-units.lua. Windows are of a second and more: of shorter ones others may have to be told (stays in
-- holds.lua). (As in quick-sliding-log.lua: each function and argument is paid for.)
--
-- KEYS   levels, due, outbox, reservations of the partition; the holds of the key; its counter
-- ARGV   1 now_ms ('' = the server's clock)  2 id of the lease  3 ttl in ms  4 units that it has  5 of them, those
--        that are not used  6 units that it is to have  7 the smallest number that is of use  8 units
--        used  9 the key  10 span  11 trim_every_ms; per window: ms, limit, lowest level
-- Reply  0 alone where it was left untouched; else 1, units, the mark of resets, now; per window: units used,
--        when the first of them is free again, and when all are
--
-- include: quick-clock

local call, pcall, match, format, max = redis.call, redis.pcall, string.match, string.format, math.max
local KEYS, ARGV = KEYS, ARGV
local levels, due, reservations, holds, counter = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]

local id, ttl, had, keep = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local want, least, used = ARGV[6] + 0, ARGV[7] + 0, ARGV[8] + 0
local key, span, trim_every = ARGV[9], ARGV[10] + 0, ARGV[11] + 0
local untouched = {0}

-- Read. What is compared with bounds here, and why, is said in prelude.lua and totals.lua.
local newest = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
if newest.err or not newest[1] then return untouched end
local fields = newest[1][2]
local last, total = match(newest[1][1], '^%d+') + 0, tonumber(fields[4])
if fields[5] ~= 'reserved' or fields[7] then return untouched end
if not total or total < 1 or total >= 2251799813685248 or total % 1 ~= 0 then return untouched end
if last <= now - span or last > now + 86400000 then return untouched end

local of_key = '\n\n' .. key
local reserved, mark = call('HGET', levels, of_key), tonumber(call('HGET', levels, '\nresets') or '0')
local sum, till = match(reserved or '', '^([1-9]%d*);%d+;(%d+);c$')
if not sum or not mark or #reserved > 64 or till + 0 <= now then return untouched end
sum = sum + 0

local member, stands, expires = id .. ':' .. format('%d', had) .. ':l', false, now + ttl
local first, last_of = expires, expires -- of the holds, when they expire
local held = call('ZRANGE', holds, '0', '31', 'WITHSCORES')
if held[63] then return untouched end
for i = 1, #held, 2 do
  local at = held[i + 1] + 0
  if at <= now then return untouched end
  if held[i] == member then
    stands = true
  else
    if at < first then first = at end
    if at > last_of then last_of = at end
  end
end
if not stands or sum < had then return untouched end
call('HLEN', reservations)
call('ZCARD', due)

-- Decide.
local ms = last > now and last or now
local reply, n, room = {1, 0, mark, ms}, 4, nil
for w = 12, #ARGV, 3 do
  local length, charged, free = ARGV[w] + 0, 0, ms
  local from = ms - length
  if last > from then
    local e = call('XRANGE', counter, format('%d', from + 1), '+', 'COUNT', '1')[1]
    local count, sum_then = tonumber(e[2][2]), tonumber(e[2][4])
    if count and sum_then and count >= 1 and count <= sum_then and sum_then <= total then -- no NaN either
      charged, free = total - sum_then + count, match(e[1], '^%d+') + 0
    else
      return untouched
    end
  end
  if charged + sum >= ARGV[w + 2] + 0 then return untouched end
  local left = ARGV[w + 1] - (charged + sum - had + used)
  if not room or left < room then room = left end
  reply[n + 1], reply[n + 2], reply[n + 3] = charged + used, free + length, max(last_of, ms) + length
  n = n + 3
end
local most = max((room * 3 - room * 3 % 4) / 4, keep + math.min(least, room - keep))
local units = math.min(want, most)
units = max(keep, units - units % least)
if units < 1 or used + units < had then return untouched end -- units come back: others are told of that
sum = sum - had + units
for w = 12, #ARGV, 3 do
  local i = 5 + w - 12
  reply[i] = reply[i] + sum
  if reply[i] >= ARGV[w + 2] + 0 then return untouched end
end

-- Write.
local text, expires_text = format('%d', units), format('%d', expires)
local rest = last_of - now
call('ZREM', holds, member)
call('ZADD', holds, expires_text, id .. ':' .. text .. ':l')
call('HSET', reservations, id, format('open\n%d\n%d\n-\n0\n-\n%dl\n%s', expires, ttl, units, key))
call('ZADD', due, expires_text, '\n' .. id)
call('HSET', levels, of_key, format('%d;%d;%d;c', sum, first, last_of))
call('PEXPIRE', holds, format('%d', max(min_expiry, rest + 86400000)))
local id_of, count = format('%d-*', ms), format('%d', used)
total = format('%d', total + used)
local entry = pcall('XADD', counter, 'MINID', '~', format('%d', max(0, ms - span)), id_of, 'count', count, 'total',
  total, 'reserved', '1')
if entry.err then -- as add_to_log in sliding-log.lua has it
  if not string.find(entry.err, ' ID', 1, true) then error(entry) end
  entry = pcall('XADD', counter, '*', 'count', count, 'total', total, 'reserved', '1')
  if entry.err then
    if not string.find(entry.err, ' ID', 1, true) then error(entry) end
    call('UNLINK', counter)
    call('XADD', counter, id_of, 'count', count, 'total', total, 'reserved', '1')
  end
end
call('PEXPIRE', counter, format('%d', max(min_expiry, span + trim_every) + rest))
reply[2] = units
return reply
