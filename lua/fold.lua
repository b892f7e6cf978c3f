-- fold.lua: counts one batch of events of one partition, each at most once.
--
-- KEYS   1 events  2 levels  3 due  4 outbox
--        5..  the counter of each group; groups of one counter stand together,
--        in time order, so a counter may stand several times
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group
--        3 number of rules; per rule: number of its groups, then the rule (prelude.lua)
--        then per group: count, number of events n, their n IDs, rising
-- A group is one or more events of one key with the same count that may share
-- an entry: it is put at the time of its newest event.
--
-- Reply  folded events, events too late for every window, events that somebody
--        else has counted, transitions written
--
-- The gate: XACK says how many of a group's events were still pending, and just
-- so many are counted. All have the same count, so it need not say which. A
-- batch that was sent twice, claimed by another worker, or folded by a worker
-- that slept adds nothing.

local EVENTS, LEVELS, DUE, OUTBOX, FIRST = KEYS[1], KEYS[2], KEYS[3], KEYS[4], 5
local group = ARGV[2]

-- Validate: every rule, every group; nothing has been written when it fails.
local now, at = clock(), 4
local groups = #KEYS - FIRST + 1
local rules, rule_ends, g = {}, {}, 0
for r = 1, number(3, 1) do
  g = g + number(at, 1)
  rule_ends[r] = g
  rules[r], at = rule_at(at + 1)
end
if g ~= groups then error('rules name ' .. g .. ' groups, KEYS has ' .. groups) end

local counts, sizes, heads, times = {}, {}, {}, {}
for i = 1, groups do
  local n = ARGV[at + 1] + 0 -- arithmetic on what is no number is an error, and cheaper than asking
  local ms = match(ARGV[at + 1 + n], '^%d+') + 0
  counts[i], sizes[i], heads[i], times[i] = ARGV[at] + 0, n, at + 2, ms
  if ms > now then now = ms end
  at = at + 2 + n
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end

-- Read: each counter once, and what its windows hold where a level is near.
local states, rule_of, near = {}, {}, {}
local prove, judge
local i = 1
for r, rule in ipairs(rules) do
  local open, bound, lowest = rule.algo.open, rule.algo.bound, rule.floor
  while i <= rule_ends[r] do
    local counter, first, planned = KEYS[FIRST + i - 1], i, 0
    local s = open(counter, now, rule.span)
    repeat
      states[i], rule_of[i] = s, rule
      planned = planned + counts[i] * sizes[i]
      i = i + 1
    until KEYS[FIRST + i - 1] ~= counter
    if bound(s) + planned >= lowest then
      local used, close = {}, false
      for w = 1, rule.n do
        used[w] = rule.algo.used(s, rule.ms[w])
        close = close or used[w] + planned >= rule.lowest[w]
      end
      if close then
        if not prove then
          prove, judge = levels()
          prove(LEVELS, DUE, OUTBOX)
        end
        local key = user_key(counter)
        near[#near + 1] = {rule = rule, state = s, used = used, key = key, first = first, last = i - 1,
                           text = call('HGET', LEVELS, key), levels = LEVELS, due = DUE, outbox = OUTBOX}
      end
    end
  end
end

-- Write: acknowledge, and count what was still pending.
local folded, late, gone = 0, 0, 0
local put, amount = {}, {}
for i = 1, groups do
  local s, n, a, acked = states[i], sizes[i], heads[i], nil
  local newest = ARGV[a + n - 1]
  if n == 1 then
    acked = call('XACK', EVENTS, group, newest)
  else
    acked = 0
    for b = a, a + n - 1, 1000 do
      acked = acked + call('XACK', EVENTS, group, unpack(ARGV, b, math.min(b + 999, a + n - 1)))
    end
  end
  gone = gone + n - acked
  if acked > 0 then
    local rule = rule_of[i]
    if times[i] <= s.now - rule.span then
      late = late + acked
    else
      folded = folded + acked
      amount[i] = acked * counts[i]
      put[i] = rule.algo.add(s, rule, times[i], newest, amount[i])
    end
  end
end

-- Evaluate: only counters near a level. Reading is safe here, the types are proven.
local transitions = 0
for _, c in ipairs(near) do
  local before, after = c.used, {}
  for w = 1, c.rule.n do
    local used = before[w]
    for i = c.first, c.last do
      if put[i] and put[i] > c.state.now - c.rule.ms[w] then used = used + amount[i] end
    end
    after[w] = used
  end
  c.used = after
  c.crossed = function(w, threshold)
    local used = before[w]
    for i = c.first, c.last do
      if put[i] and put[i] > c.state.now - c.rule.ms[w] then
        used = used + amount[i]
        if used >= threshold then return put[i] end
      end
    end
    return c.state.now
  end
  transitions = transitions + judge(c)
end
return {folded, late, gone, transitions}
