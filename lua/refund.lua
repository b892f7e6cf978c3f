-- refund.lua: gives units of a key back, as if the oldest that it still holds had
-- never been spent. (decision 26 says why those: none that a window still counts
-- may be taken for one that has left it.)
--
-- KEYS   1 levels  2 due  3 outbox  4 counter
-- ARGV   1 now_ms ('' = the server's clock)  2 units; then the rule (prelude.lua)
-- Reply  units given back, at most what the longest window holds; now; then per
--        window where the key stands (standing in prelude.lua)

local now, n = clock(), number(2, 1)
local s = state_of(rule_at(3), KEYS[4], now)
local rule, longest = s.rule, 1
for w = 2, rule.n do
  if rule.ms[w] > rule.ms[longest] then longest = w end
end
s.key = user_key(KEYS[4])
s.text = call('HGET', KEYS[1], s.key)
local prove, judge = levels(KEYS[1], KEYS[2], KEYS[3])
prove()

-- Write. A level that the key stands at may end earlier now; sweep ends it.
local given = math.min(n, s.used[longest])
if given > 0 then
  given = rule.algo.give_back(s, longest, given)
  local key, text = s.key, s.text
  s = state_of(rule, KEYS[4], now)
  if text then
    s.key, s.text = key, text
    s.given, s.crossed = true, function() return s.now end
    judge(s)
  end
end
local reply = {given, s.now}
standing(reply, 2, s, 0)
return reply
