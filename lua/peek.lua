-- peek.lua: where a key stands, changing nothing.
--
-- KEYS   1 counter
-- ARGV   1 now_ms ('' = the server's clock); then the rule (prelude.lua)
-- Reply  now, then per window where the key stands (standing in prelude.lua)

local rule = rule_at(2)
local s = state_of(rule, KEYS[1], clock())
local reply = {s.now}
for w = 1, rule.n do standing(reply, s, w) end
return reply
