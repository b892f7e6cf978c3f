-- check.lua: may these keys spend these costs now? All are charged or none is.
--
-- KEYS   1 levels  2 due  3 outbox  4.. one counter per check, each once
-- ARGV   1 now_ms ('' = the server's clock); then per check: cost, the rule (prelude.lua)
-- Reply  allowed (1|0), transitions written, then per check: now, retry_ms (0 =
--        it is admitted, -1 = it can never be), and per window where the key
--        stands after the charge if there was one (standing in prelude.lua)
--
-- A denied check writes no count, only its transition if there is one. A shadow
-- rule never denies: its key is charged, and its retry_ms says what it would have said.

local LEVELS, DUE, OUTBOX, FIRST = KEYS[1], KEYS[2], KEYS[3], 4
local now, at = clock(), 2
local checks, allowed = {}, true
local prove, judge

for i = 1, #KEYS - FIRST + 1 do
  local cost, rule = number(at, 1), nil
  rule, at = rule_at(at + 1)
  local s, algo = state_of(rule, KEYS[FIRST + i - 1], now), rule.algo
  local c = {rule = rule, state = s, cost = cost, used = {}, retry = 0, near = false}
  for w = 1, rule.n do
    local limit, used = rule.limit[w], algo.used(s, w)
    c.used[w] = used
    if used + cost > limit then
      c.denied = true
      if cost > limit then
        c.retry = -1
      elseif c.retry >= 0 then
        c.retry = math.max(c.retry, algo.free_at(s, w, limit - cost) - s.now)
      end
    end
    if used + cost >= rule.lowest[w] then c.near = true end
  end
  if c.denied and not rule.shadow then allowed = false end
  if c.near then
    if not judge then prove, judge = levels(LEVELS, DUE, OUTBOX) end
    c.key = user_key(s.counter)
    c.text = call('HGET', LEVELS, c.key)
  end
  checks[i] = c
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end
if allowed and prove then prove() end

local transitions = 0
local reply = {allowed and 1 or 0, 0}
for i = 1, #checks do
  local c = checks[i]
  local rule, s = c.rule, c.state
  if allowed then
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, int(c.cost))
    for w = 1, rule.n do c.used[w] = c.used[w] + c.cost end
  end
  if c.near then
    c.crossed = function() return s.now end
    transitions = transitions + judge(c)
  end
  reply[#reply + 1] = s.now
  reply[#reply + 1] = c.retry
  for w = 1, rule.n do standing(reply, s, w) end
end
reply[2] = transitions
return reply
