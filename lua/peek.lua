-- peek.lua: where a key stands, changing nothing.
--
-- KEYS   1 counter
-- ARGV   1 now_ms ('' = the server's clock); then the rule (prelude.lua)
-- Reply  now, then per window: used, first_ms, empty_ms, as check.lua gives them

local rule = rule_at(2)
local s = state_of(rule, KEYS[1], clock())
local reply = {s.now}
for w = 1, rule.n do
  local ms = rule.ms[w]
  local used, first = rule.algo.used(s, ms)
  reply[#reply + 1] = used
  reply[#reply + 1] = first > 0 and first + ms or 0
  reply[#reply + 1] = used > 0 and rule.algo.emptied_at(s, ms) or 0
end
return reply
