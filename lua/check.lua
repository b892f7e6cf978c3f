-- check.lua: may these keys spend these costs now? A call asks for one or more
-- keys at once: all of them are charged or none is. Calls that came at the same
-- time share a run, and are answered as if they had come one after the other.
--
-- KEYS   levels, due, outbox of each partition; then the counters, each once; then what
--        idempotency.lua takes
-- ARGV   1 now_ms ('' = the server's clock)  2 partitions  3 rules; the rules (prelude.lua);
--        what idempotency.lua takes; runs of counters that share rule and partition,
--        until all have theirs: how many, rule, partition; then per check: its cost, and
--        its counter, below zero where another check of the same call follows. All are
--        numbered from 1. A cost of 0 charges nothing and asks whether one unit would be
--        admitted. A cost below zero is that of a check which is no plain one, and its
--        kind follows the counter: LOOK, CHARGE or CHARGE_DENIED
-- Reply  transitions written; then per call: allowed (1|0; of a call that
--        idempotency.lua knows as it says), and per check: now,
--        retry_ms (0 = it is admitted, -1 = it can never be), per window the state of
--        the key (window_states in prelude.lua), and per window that does not
--        decide what its retry_ms would have been
--
-- A denied call writes no count but those of the kinds that say so, only its transition
-- if there is one. A key whose
-- rules take several counters has a check for each of them in the call.
-- All that a run charges to a counter is one entry.
--
-- include: prelude, levels, wait

-- The kinds of checks that are not plain ones.
local LOOK = 1          -- charges nothing, and has its say in the call
local CHARGE = 2        -- is charged whatever the windows hold. It is denied where it went
--                         over, and its retry_ms is then the wait for one unit. No plain
--                         check stands in a call of these
local CHARGE_DENIED = 3 -- like a plain one, and charged also where the call is denied

-- shadow_waits gives, for each window that does not decide, the wait for n more units:
-- false where that can be computed only after the charges.
local function shadow_waits(s, n)
  local rule, waits = s.rule, {}
  for w = rule.decides + 1, rule.n do
    local room = rule.limit[w] - n - s.charged
    if rule.in_flight and rule.in_flight[w] then -- a check holds no slot
      waits[w] = 0
    elseif n > rule.limit[w] then
      waits[w] = -1
    elseif s.used[w] <= room then
      waits[w] = 0
    else
      waits[w] = room >= 0 and free_at(s, w, room) - s.now
    end
  end
  return waits
end

-- is_recorded is true for a counter that was charged nothing where its key's record
-- already has a throttle for each window that is at its limit: there is nothing to
-- write, so the keys that are checked most do not pay for levels.lua. The levels of a
-- shadow rule do not change while nothing is charged.
local function is_recorded(s)
  local rule, text = s.rule, s.text
  if rule.decides == 0 then return true end
  local head = match(rule.spec, '^[^;]+;[^;]+;')
  if not text or sub(text, 1, #head) ~= head then return false end
  for w = 1, rule.decides do
    if s.used[w] >= rule.lowest[w] then
      local from = s.used[w] >= rule.limit[w] and find(text, '|' .. int(rule.ms[w]) .. ',', 1, true)
      if not from or not find(match(text, '^[^|!]*', from + 1), '100@', 1, true) then return false end
    end
  end
  return true
end

-- Validate the clock and the rules. The costs are validated where they are decided on:
-- nothing has been written then.
local now, at = clock(), 4
local first = 3 * number(2, 1)
local rules = {}
for r = 1, number(3, 1) do rules[r], at = rule_at(at) end
local stop_at, known = #KEYS, nil -- where the counters end; number of a call -> its answer as remembered
if algorithms.idempotency then known, at, stop_at = algorithms.idempotency(at) end

-- Read: each counter once. Its state is that of state_of (prelude.lua), and
--   charged       the units that this run charges
--   partition_at  where its partition begins in KEYS
local counters, c = {}, 0
while first + c < stop_at do
  local rule, begins = rules[number(at + 1, 1)], 3 * number(at + 2, 1) - 2
  for _ = 1, number(at, 1) do
    c = c + 1
    local s = state_of(rule, KEYS[first + c], now, KEYS[begins])
    s.partition_at = begins
    counters[c] = s
  end
  at = at + 3
end

-- Decide, call by call. The plan is one list, as a table per check would cost more: for
-- each call CALL_SIZE values, and after them ITEM_SIZE values for each of its checks.
local CALL_ALLOWED = 0 -- whether the call is allowed
local CALL_END = 1     -- where its last check ends, which is where the next call begins
local CALL_SIZE = 2
local ITEM_STATE = 0   -- the counter's state
local ITEM_COST = 1
local ITEM_RETRY = 2   -- retry_ms; false where it can be computed only after the charges
local ITEM_CHARGED = 3 -- what the run has charged to the counter by then
local ITEM_SIZE = 4

local plan, free = {}, 1 -- free: the next place in the plan
local denied -- counters of denied calls; nil while there is none
local shadows = {} -- where a check begins in the plan -> its shadow_waits
local kinds        -- where it begins -> its kind; nil where all are plain
local stop, calls = #ARGV, 0
while at <= stop do
  local call_at, allowed, answered = free, true, nil
  if known then
    calls = calls + 1
    answered = known[calls] and known[calls].answered -- before: it is not charged again
  end
  local first_item = call_at + CALL_SIZE
  local item = first_item
  plan[call_at + CALL_ALLOWED] = true
  plan[call_at + CALL_END] = 0
  repeat
    local cost, number_of, kind = number(at, -9007199254740991), ARGV[at + 1] + 0, nil
    if cost < 0 then
      cost, kind, at = -cost, number(at + 2, LOOK), at + 1
    end
    if answered then kind = LOOK end
    local more = number_of < 0
    local s = counters[more and -number_of or number_of]
    local rule, used, charged = s.rule, s.used, s.charged
    local n, retry = cost > 0 and cost or 1, 0
    if rule.algo.penalty and rule.decides > 0 and penalty_of(s) > s.now then
      allowed = false
      retry = charged == 0 and (not kind or kind == LOOK) and wait(s, n, 1, rule.decides)
    end
    for w = 1, rule.decides do
      if used[w] + charged + n > rule.limit[w] then
        allowed = false
        retry = charged == 0 and (not kind or kind == LOOK) and wait(s, n, 1, rule.decides)
        break
      end
    end
    if rule.n > rule.decides then shadows[item] = shadow_waits(s, n) end
    if kind then
      kinds = kinds or {}
      kinds[item] = kind
    end
    if kind ~= LOOK then
      charged = charged + cost
      s.charged = charged
    end
    plan[item + ITEM_STATE] = s
    plan[item + ITEM_COST] = cost
    plan[item + ITEM_RETRY] = retry
    plan[item + ITEM_CHARGED] = charged
    at, item = at + 2, item + ITEM_SIZE
  until not more
  free = item
  plan[call_at + CALL_END] = free
  -- A denied call charges nothing, and each check is answered as after the whole call.
  if not allowed or free > first_item + ITEM_SIZE then
    plan[call_at + CALL_ALLOWED] = allowed
    if not allowed then
      denied = denied or {}
      for item = first_item, free - 1, ITEM_SIZE do
        local s = plan[item + ITEM_STATE]
        denied[s] = not kinds or kinds[item] ~= LOOK or denied[s]
        if not kinds or not kinds[item] then
          s.charged = s.charged - plan[item + ITEM_COST]
        elseif kinds[item] ~= LOOK then
          -- Its waits are those after the charge.
          if kinds[item] == CHARGE_DENIED then plan[item + ITEM_RETRY] = false end
          for w, ms in pairs(shadows[item] or {}) do
            if ms ~= 0 then shadows[item][w] = false end
          end
        end
      end
    end
    for item = first_item, free - 1, ITEM_SIZE do
      plan[item + ITEM_CHARGED] = plan[item + ITEM_STATE].charged
    end
  end
end
if at ~= stop + 1 then error('ARGV has ' .. stop .. ' values, expected ' .. at - 1) end

-- Read, where the decisions lead to a level: the records of those keys, which judge
-- compares (levels.lua).
local judges = {} -- where a partition begins in KEYS -> its judge
for c = 1, #counters do
  local s = counters[c]
  local rule, near = s.rule, false
  for w = 1, rule.n do
    near = near or s.used[w] + s.charged >= rule.lowest[w]
  end
  if near then
    local p = s.partition_at
    s.key = user_key(s.counter)
    if rule.decides > 0 then s.text = call('HGET', KEYS[p], s.key) end
    s.near = s.charged > 0 or not is_recorded(s)
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
  local rule, charged = s.rule, s.charged
  if charged > 0 then
    local count = charged == 1 and '1' or int(charged)
    s.last, s.total = rule.algo.add(s.counter, rule, s.last, s.total, s.now, nil, count)
    for w = 1, rule.n do
      if not rule.in_flight or not rule.in_flight[w] then s.used[w] = s.used[w] + charged end
    end
  elseif denied and denied[s] and s.near ~= false then -- where its record stands that was done
    keep(s)
  end
  if s.near then
    s.crossed = function() return s.now end
    transitions = transitions + judges[s.partition_at](s)
  end
end

-- Reply. What came in the same run after a check is not in its `used`.
local reply, n, call_at = {transitions}, 1, 1
calls = 0
while call_at < free do
  n = n + 1
  local from = n
  reply[n] = plan[call_at + CALL_ALLOWED] and 1 or 0
  local call_end = plan[call_at + CALL_END]
  for item = call_at + CALL_SIZE, call_end - 1, ITEM_SIZE do
    local s, retry, waits = plan[item + ITEM_STATE], plan[item + ITEM_RETRY], shadows[item]
    local cost = plan[item + ITEM_COST]
    if cost == 0 or kinds and kinds[item] == CHARGE then cost = 1 end
    reply[n + 1] = s.now
    retry = retry or wait(s, cost, 1, s.rule.decides)
    -- A penalty can have begun in this run.
    if retry > 0 and s.near and s.rule.algo.penalty then retry = math.max(retry, penalty_of(s) - s.now) end
    reply[n + 2] = retry
    n = window_states(reply, n + 2, s, s.charged - plan[item + ITEM_CHARGED])
    if waits then
      for w = s.rule.decides + 1, s.rule.n do
        n = n + 1
        reply[n] = waits[w] or wait(s, cost, w, w)
      end
    end
  end
  call_at = call_end
  if known then
    calls = calls + 1
    if known[calls] then known[calls].finish(reply, from, n) end
  end
end
return reply
