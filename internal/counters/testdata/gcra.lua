-- gcra.lua: a limit by the generic cell rate algorithm, the yardstick of a check.
-- One number per key, the theoretical arrival time: when all that was admitted
-- would have come at a steady rate. It is no sliding window: after a quiet spell
-- a burst and the steady rate together let up to twice the limit into one.
--
-- KEYS   1 the arrival time (µs since 1970), expiring when it has passed
-- ARGV   1 limit  2 per (µs)  3 cost
-- Reply  allowed (1|0), remaining, retry_ms (0 = it is admitted), empty_ms

local limit, per, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local interval = per / limit
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local arrival = tonumber(redis.call('GET', KEYS[1]) or now)
if arrival < now then arrival = now end

local after = arrival + cost * interval
local wait = after - per - now
if wait > 0 then
  return {0, math.floor((per - (arrival - now)) / interval), math.ceil(wait / 1000), math.ceil((arrival - now) / 1000)}
end
-- Thousandths of a µs: a limit of 10^9 an hour has an interval of 3.6 µs.
redis.call('SET', KEYS[1], string.format('%.3f', after), 'PX', math.max(1, math.ceil((after - now) / 1000)))
return {1, math.floor(-wait / interval), 0, math.ceil((after - now) / 1000)}
