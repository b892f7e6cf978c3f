-- check.lua: may these keys spend these costs now? A call asks for one or more
-- keys at once: all of them are charged or none is. Calls that came at the same
-- time share a run, and are answered as if they had come one after the other.
--
-- KEYS   levels, due, outbox of each partition; then the counters, each once
-- ARGV   1 now_ms ('' = the server's clock)  2 partitions  3 rules; the rules (prelude.lua);
--        runs of counters that share rule and partition, until all have theirs:
--        how many, rule, partition; then per check: its cost, and its counter,
--        below zero where another check of the same call follows. All are numbered
--        from 1. A cost of 0 charges nothing and asks whether one unit would be admitted
-- Reply  transitions written; then per call: allowed (1|0), and per check: now,
--        retry_ms (0 = it is admitted, -1 = it can never be), and per window
--        where the key stands (standing in prelude.lua)
--
-- A denied call writes no count, only its transition if there is one. A shadow
-- rule never denies: its key is charged, and its retry_ms says what it would have said.
-- All that a run charges to a counter is one entry.

-- Validate.
local now, at = clock(), 4
local first = 3 * number(2, 1)
local rules = {}
for r = 1, number(3, 1) do rules[r], at = rule_at(at) end

-- Read: each counter once. To its state (state_of in prelude.lua) come spent, the
-- units that this run charges, and at, where its partition begins in KEYS.
local counters, c = {}, 0
while first + c < #KEYS do
  local rule, begins = rules[number(at + 1, 1)], 3 * number(at + 2, 1) - 2
  for _ = 1, number(at, 1) do
    c = c + 1
    local s = state_of(rule, KEYS[first + c], now)
    s.at = begins
    counters[c] = s
  end
  at = at + 3
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

-- Decide, call by call. plan holds, per call, whether it is allowed, where its
-- checks end, and per check: its counter, its cost, its retry_ms (false: to be told
-- after the charges), and what the run has charged to the counter by then.
local plan, size, stop = {}, 0, #ARGV
while at <= stop do
  local allowed, from = true, size + 2
  plan[size + 1] = true
  plan[from] = 0
  size = from
  repeat
    local cost, number_of = number(at, 0), ARGV[at + 1] + 0
    local more = number_of < 0
    local s = counters[more and -number_of or number_of]
    local rule, used, spent = s.rule, s.used, s.spent
    local n, retry = cost > 0 and cost or 1, 0
    for w = 1, rule.n do
      if used[w] + spent + n > rule.limit[w] then
        if not rule.shadow then allowed = false end
        retry = spent == 0 and wait(s, n)
        break
      end
    end
    spent = spent + cost
    s.spent = spent
    plan[size + 1] = s
    plan[size + 2] = cost
    plan[size + 3] = retry
    plan[size + 4] = spent
    at, size = at + 2, size + 4
  until not more
  plan[from] = size
  if not allowed or size > from + 4 then
    plan[from - 1] = allowed
    if not allowed then
      for i = from + 1, size, 4 do plan[i].spent = plan[i].spent - plan[i + 1] end
    end
    for i = from + 1, size, 4 do plan[i + 3] = plan[i].spent end
  end
end
if at ~= stop + 1 then error('ARGV has ' .. stop .. ' values, expected ' .. at - 1) end

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
local judges = {} -- where a partition begins in KEYS -> its judge
for c = 1, #counters do
  local s = counters[c]
  local rule, near = s.rule, false
  for w = 1, rule.n do
    near = near or s.used[w] + s.spent >= rule.lowest[w]
  end
  if near then
    local p = s.at
    s.key = user_key(s.counter)
    s.text = call('HGET', KEYS[p], s.key)
    s.near = s.spent > 0 or not settled(s)
    if s.near and not judges[p] then
      local prove, judge = levels(KEYS[p], KEYS[p + 1], KEYS[p + 2])
      prove()
      judges[p] = judge
    end
  end
end

-- Write.
local transitions = 0
for c = 1, #counters do
  local s = counters[c]
  local rule, spent = s.rule, s.spent
  if spent > 0 then
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, spent == 1 and '1' or int(spent))
    for w = 1, rule.n do s.used[w] = s.used[w] + spent end
  end
  if s.near then
    s.crossed = function() return s.now end
    transitions = transitions + judges[s.at](s)
  end
end

-- Answer. What came in the same run after a check is not in its `used`.
local reply, n, i = {transitions}, 1, 1
while i < size do
  n = n + 1
  reply[n] = plan[i] and 1 or 0
  local last = plan[i + 1]
  i = i + 2
  while i < last do
    local s, retry = plan[i], plan[i + 2]
    reply[n + 1] = s.now
    reply[n + 2] = retry or wait(s, math.max(1, plan[i + 1]))
    n = standing(reply, n + 2, s, s.spent - plan[i + 3])
    i = i + 4
  end
end
return reply
