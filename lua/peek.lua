-- peek.lua: where a key stands, changing nothing.
--
-- KEYS   1 counter
-- ARGV   1 now_ms ('' = the server's clock); then the rule (prelude.lua)
-- Reply  now, then per window where the key stands (standing in prelude.lua)

local s = state_of(rule_at(2), KEYS[1], clock())
local reply = {s.now}
standing(reply, 1, s, 0)
return reply
