-- peek.lua: the state of a key, changing nothing.
--
-- KEYS   per counter its name, and the levels of its partition
-- ARGV   1 now_ms ('' = the server's clock); then per counter the rule (prelude.lua)
-- Reply  per counter: now, then per window the state of the key (window_states in prelude.lua)
--
-- include: prelude

local now, at, reply, n = clock(), 2, {}, 0
for i = 1, #KEYS, 2 do
  local rule
  rule, at = rule_at(at)
  local s = state_of(rule, KEYS[i], now, KEYS[i + 1])
  reply[n + 1] = s.now
  n = window_states(reply, n + 1, s, 0)
end
return reply
