-- refund.lua: gives units of a key back, as if the oldest that it still holds had
-- never been charged. (decision 26 says why those: none that a window still counts
-- may be taken for one that has left it.)
--
-- KEYS   1 levels  2 due  3 outbox  4.. the counters of the key
-- ARGV   1 now_ms ('' = the server's clock)  2 units; then per counter the rule (prelude.lua)
-- Reply  units given back of the first counter, at most what the longest of the windows
--        that decide holds; then per counter: now; per window the state of the key
--        (window_states in prelude.lua)
--
-- include: prelude, levels, freed

-- Validate, and read.
local now, n, at = clock(), number(2, 1), 3
local states = {}
local check_types, judge = levels(KEYS[1], KEYS[2], KEYS[3])
check_types()
for i = 4, #KEYS do
  local rule, longest
  rule, at = rule_at(at)
  local s = state_of(rule, KEYS[i], now, KEYS[1])
  longest = 1
  for w = 2, rule.decides > 0 and rule.decides or rule.n do
    if rule.ms[w] > rule.ms[longest] and not (rule.in_flight and rule.in_flight[w]) then longest = w end
  end
  s.charged_in = {} -- what is reserved cannot be given back here
  for w = 1, rule.n do s.charged_in[w] = rule.algo.used(s, w) end
  s.key, s.longest = user_key(KEYS[i]), longest
  if rule.decides > 0 then s.text = call('HGET', KEYS[1], s.key) end
  states[i - 3] = s
end

-- Write. A level of the key may end earlier now; sweep.lua ends it.
local reply, size, freed = {0}, 1, false
for i, s in ipairs(states) do
  local rule, longest = s.rule, s.longest
  local refunded = math.min(n, s.charged_in[longest])
  if refunded > 0 then
    s.used = s.charged_in
    refunded = rule.algo.give_back(s, longest, refunded)
    freed = true
    local key, text, r = s.key, s.text, s.reserved
    if r then marks[s.counter] = nil end
    s = state_of(rule, KEYS[i + 3], now, KEYS[1])
    if r and not s.reserved then -- the newest entry is gone, and the mark with it
      marks[s.counter] = r
      rule.algo.add(s.counter, rule, s.last, s.total, math.max(1, s.last), nil, '0')
      s = state_of(rule, KEYS[i + 3], now, KEYS[1])
    end
    if text ~= false or rule.n > rule.decides then
      s.key, s.text = key, text
      s.refunded, s.crossed = true, function() return s.now end
      judge(s)
    end
  end
  if i == 1 then reply[1] = refunded end
  reply[size + 1] = s.now
  size = window_states(reply, size + 1, s, 0)
end
if freed then mark_freed(KEYS[1]) end
return reply
