-- check.lua: may these keys spend these costs now? All are charged or none is.
--
-- KEYS   1 levels  2 due  3 outbox  4.. one counter per check, each once
-- ARGV   1 now_ms ('' = the server's clock); then per check: cost, the rule (prelude.lua)
-- Reply  allowed (1|0), transitions written, then per check: now, retry_ms (0 =
--        it is admitted, -1 = it can never be), and per window: used, first_ms, empty_ms
--        `used` is after the charge if there was one; first_ms is when the first
--        units come back, empty_ms when all have (0 where none are used)
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
  local algo = rule.algo
  local s = state_of(rule, KEYS[FIRST + i - 1], now)
  local c = {rule = rule, state = s, cost = cost, used = {}, first = {}, retry = 0, near = false}
  for w = 1, rule.n do
    local ms, limit = rule.ms[w], rule.limit[w]
    local used, first = algo.used(s, ms)
    c.used[w], c.first[w] = used, first
    if used + cost > limit then
      c.denied = true
      if cost > limit then
        c.retry = -1
      elseif c.retry >= 0 then
        c.retry = math.max(c.retry, algo.free_at(s, ms, limit - cost) - s.now)
      end
    end
    if used + cost >= rule.lowest[w] then c.near = true end
  end
  if c.denied and not rule.shadow then allowed = false end
  if c.near then
    if not prove then
      prove, judge = levels()
      prove(LEVELS, DUE, OUTBOX)
    end
    c.key = user_key(KEYS[FIRST + i - 1])
    c.text = call('HGET', LEVELS, c.key)
  end
  checks[i] = c
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end

local transitions = 0
local reply = {allowed and 1 or 0, 0}
for i = 1, #checks do
  local c = checks[i]
  local rule, s = c.rule, c.state
  if allowed then
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, int(c.cost))
    for w = 1, rule.n do
      c.used[w] = c.used[w] + c.cost
      if c.first[w] == 0 then c.first[w] = s.now end
    end
  end
  if c.near then
    c.levels, c.due, c.outbox = LEVELS, DUE, OUTBOX
    c.crossed = function() return s.now end
    transitions = transitions + judge(c)
  end
  reply[#reply + 1] = s.now
  reply[#reply + 1] = c.retry
  for w = 1, rule.n do
    local ms, used, first = rule.ms[w], c.used[w], c.first[w]
    reply[#reply + 1] = used
    reply[#reply + 1] = first > 0 and first + ms or 0
    reply[#reply + 1] = used > 0 and rule.algo.emptied_at(s, ms) or 0
  end
end
reply[2] = transitions
return reply
