-- quick-clock.lua: the clock of the quick scripts, as prelude.lua has it for the others, without a function.

local now, min_expiry = ARGV[1], 600000
if now == '' then
  local t = redis.call('TIME')
  local us = t[2] + 0
  now, min_expiry = t[1] * 1000 + (us - us % 1000) / 1000, 0
else
  now = now + 0
end

