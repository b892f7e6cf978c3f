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
local checks, allowed = {false}, true

-- Read. A check is the state of its counter (state_of in prelude.lua) and cost,
-- used (window -> units before the charge), retry.
for i = 1, #KEYS - FIRST + 1 do
  local cost, rule = number(at, 1), nil
  rule, at = rule_at(at + 1)
  local s, algo, denied = state_of(rule, KEYS[FIRST + i - 1], now), rule.algo, false
  s.cost, s.retry, s.used = cost, 0, {0}
  for w = 1, rule.n do
    local used, limit = algo.used(s, w), rule.limit[w]
    s.used[w] = used
    if used + cost > limit then
      denied = true
      if cost > limit then
        s.retry = -1
      elseif s.retry >= 0 then
        s.retry = math.max(s.retry, algo.free_at(s, w, limit - cost) - s.now)
      end
    end
  end
  if denied and not rule.shadow then allowed = false end
  checks[i] = s
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end

-- settled tells of a denied check whether its key's record already says all that
-- there is to say: a throttle for each window that is at its limit. It spares the
-- keys that ask most the levels.
local function settled(s)
  local rule, text = s.rule, s.text
  if not text or sub(text, 1, find(text, '|', 1, true)) ~= match(rule.spec, '^[^;]+') .. '|' then return false end
  for w = 1, rule.n do
    if s.used[w] >= rule.lowest[w] then
      local from = s.used[w] >= rule.limit[w] and find(text, '|' .. int(rule.ms[w]) .. ',', 1, true)
      if not from or not find(match(text, '^[^|!]*', from + 1), '100@', 1, true) then return false end
    end
  end
  return true
end

-- Read on: the records of keys near a level, which judge compares (levels.lua).
local prove, judge
for i = 1, #checks do
  local s = checks[i]
  local rule, near = s.rule, false
  for w = 1, rule.n do
    near = near or s.used[w] + (allowed and s.cost or 0) >= rule.lowest[w]
  end
  if near then
    s.key = user_key(s.counter)
    s.text = call('HGET', LEVELS, s.key)
    s.near = allowed or not settled(s)
    if s.near and not prove then
      prove, judge = levels(LEVELS, DUE, OUTBOX)
      prove()
    end
  end
end

-- Write.
local transitions, reply, n = 0, {allowed and 1 or 0, 0, 0, 0, 0, 0, 0}, 2
for i = 1, #checks do
  local s = checks[i]
  local rule = s.rule
  if allowed then
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, int(s.cost))
  end
  if s.near then
    for w = 1, rule.n do s.used[w] = rule.algo.used(s, w) end
    s.crossed = function() return s.now end
    transitions = transitions + judge(s)
  end
  reply[n + 1], reply[n + 2] = s.now, s.retry
  n = standing(reply, n + 2, s)
end
reply[2] = transitions
return reply
