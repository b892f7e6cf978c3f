-- check.lua: may these keys spend these costs now? A call asks for one or more
-- keys at once: all of them are charged or none is. Calls that came at the same
-- time share a run, and are answered as if they had come one after the other.
--
-- KEYS   levels, due, outbox of each partition; then the counters, each once
-- ARGV   1 now_ms ('' = the server's clock)  2 partitions  3 rules; the rules (prelude.lua);
--        per counter: its rule, its partition; then per call: number of checks,
--        and per check: cost, counter. All numbered from 1. A cost of 0 charges
--        nothing and asks whether one unit would be admitted
-- Reply  transitions written; then per call: allowed (1|0), and per check: now,
--        retry_ms (0 = it is admitted, -1 = it can never be), and per window
--        where the key stands (standing in prelude.lua)
--
-- A denied call writes no count, only its transition if there is one. A shadow
-- rule never denies: its key is charged, and its retry_ms says what it would have said.
-- All that a run charges to a counter is one entry.

-- Validate.
local now, at = clock(), 4
local partitions = number(2, 1)
local first = 3 * partitions
local rules = {}
for r = 1, number(3, 1) do rules[r], at = rule_at(at) end

-- Read: each counter once. To its state (state_of in prelude.lua) come used
-- (window -> units before this run), and spent, the units that this run charges.
local counters = {}
for c = 1, #KEYS - first do
  local rule, p = rules[number(at, 1)], number(at + 1, 1)
  local s = state_of(rule, KEYS[first + c], now)
  local used, n = rule.algo.used, rule.n
  s.used, s.spent, s.first = {used(s, 1)}, 0, 3 * p - 2
  for w = 2, n do s.used[w] = used(s, w) end
  counters[c] = s
  at = at + 2
end

-- wait gives how long until s has room for n more units in all windows.
local function wait(s, n)
  local rule, retry = s.rule, 0
  for w = 1, rule.n do
    local limit = rule.limit[w]
    if n > limit then return -1 end
    if s.used[w] + n > limit then
      retry = math.max(retry, rule.algo.free_at(s, w, limit - n) - s.now)
    end
  end
  return retry
end

-- Decide, call by call. plan holds, per call, whether it is allowed, the number
-- of its checks, and per check: its counter, its cost, its retry_ms (false: to be
-- told after the charges), and what the run has charged to the counter by then.
local plan, size = {}, 0
while at <= #ARGV do
  local checks, allowed, from = number(at, 1), true, size + 2
  at, size = at + 1, from
  plan[from] = checks
  for _ = 1, checks do
    local cost, s = number(at, 0), counters[number(at + 1, 1)]
    local rule, used, spent = s.rule, s.used, s.spent
    local n, retry = cost > 0 and cost or 1, 0
    for w = 1, rule.n do
      if used[w] + spent + n > rule.limit[w] then
        if not rule.shadow then allowed = false end
        retry = spent == 0 and wait(s, n)
        break
      end
    end
    s.spent = spent + cost
    plan[size + 1], plan[size + 2], plan[size + 3], plan[size + 4] = s, cost, retry, 0
    at, size = at + 2, size + 4
  end
  plan[from - 1] = allowed
  if not allowed then
    for i = from + 1, size, 4 do plan[i].spent = plan[i].spent - plan[i + 1] end
  end
  for i = from + 1, size, 4 do plan[i + 3] = plan[i].spent end
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end

-- settled tells of a counter that was charged nothing whether its key's record
-- already says all that there is to say: a throttle for each window that is at
-- its limit. It spares the keys that ask most the levels.
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
local judges = {} -- where a partition's keys begin in KEYS -> its judge
for c = 1, #counters do
  local s = counters[c]
  local rule, near = s.rule, false
  for w = 1, rule.n do
    near = near or s.used[w] + s.spent >= rule.lowest[w]
  end
  if near then
    local f = s.first
    s.key = user_key(s.counter)
    s.text = call('HGET', KEYS[f], s.key)
    s.near = s.spent > 0 or not settled(s)
    if s.near and not judges[f] then
      local prove, judge = levels(KEYS[f], KEYS[f + 1], KEYS[f + 2])
      prove()
      judges[f] = judge
    end
  end
end

-- Write.
local transitions = 0
for c = 1, #counters do
  local s = counters[c]
  local rule = s.rule
  if s.spent > 0 then
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, int(s.spent))
    for w = 1, rule.n do s.used[w] = rule.algo.used(s, w) end
  end
  if s.near then
    s.crossed = function() return s.now end
    transitions = transitions + judges[s.first](s)
  end
end

-- Answer. What came in the same run after a check is not in its `used`.
local reply, n, i = {transitions, 0, 0, 0, 0, 0, 0}, 1, 1
while i < size do
  n = n + 1
  reply[n] = plan[i] and 1 or 0
  local checks = plan[i + 1]
  i = i + 2
  for _ = 1, checks do
    local s, cost, retry, spent = plan[i], plan[i + 1], plan[i + 2], plan[i + 3]
    reply[n + 1], reply[n + 2] = s.now, retry or wait(s, cost > 0 and cost or 1)
    n = standing(reply, n + 2, s, s.spent - spent)
    i = i + 4
  end
end
return reply
