-- check.lua: may these keys spend these costs now? A call asks for one or more
-- keys at once: all of them are charged or none is. Calls that came at the same
-- time share a run, and are answered as if they had come one after the other.
--
-- KEYS   levels, due, outbox of each partition; then the meters of each key, each key once; then what
--        idempotency.lua takes
-- ARGV   1 now_ms ('' = the server's clock)  2 partitions + 16384 * (plans + 4096 * calls that idempotency.lua
--        knows); the plans (plan.lua); what idempotency.lua takes; sections of keys, until all have theirs
--        (section_at in plan.lua), each with the values of its keys (distinct.lua; such a key has one check in a
--        call); then per check: words that say more of it (WORDS below), none for a plain one;
--        and its cost. (An argument costs a thousand instructions, and so does a number.) A cost of 0 charges nothing
--        and asks whether one unit would be admitted
-- Reply  transitions written; then per call: allowed (1|0; of a call that
--        idempotency.lua knows as it says), and per check: now,
--        retry_ms (0 = it is admitted, -1 = it can never be), per window the state of
--        the key (window_states in state.lua), and per window that does not
--        decide what its retry_ms would have been
--
-- A denied call writes no count but those of the kinds that say so, only its transition
-- if there is one. All that a run charges to a key is one entry.
--
-- include: library, plan, state, reserved, records, levels, idempotency

-- The kinds of checks that are not plain ones.
local LOOK = 'l'          -- charges nothing, and has its say in the call
local CHARGE = 'c'        -- is charged whatever the windows hold. It is denied where it went
--                           over, and its retry_ms is then the wait for one unit. No plain
--                           check stands in a call of these
local CHARGE_DENIED = 'd' -- like a plain one, and charged also where the call is denied
local MORE = '+'          -- another check of the same call follows
local KEY = 'k'           -- the number of its key follows, from 1; without, it is the one after the last check's
local WORDS = {l = LOOK, c = CHARGE, d = CHARGE_DENIED, ['+'] = MORE, k = KEY}

-- Lists that calls use again, as new ones would cost more. A call writes what it reads of them.
local keys                -- the state of each key
local item_state, item_cost, item_kind -- per check; kind is false of a plain one
local item_retry          -- its retry_ms; false where it can be computed only after the charges
local item_charged        -- what the run has charged to its key by then
local item_shadows        -- its shadow_waits; false where it has none
local call_allowed, call_end -- per call: whether it is allowed, and its last check
local reply
local function new_lists()
  keys, item_state, item_cost, item_kind, item_retry = {}, {}, {}, {}, {}
  item_charged, item_shadows, call_allowed, call_end, reply = {}, {}, {}, {}, {}
end
new_lists()

-- later_shadows puts off the waits of each shadow rule until all of its windows have room at once (plan.lua: later).
local function later_shadows(s, waits)
  local plan, to = s.plan, s.plan.decides
  for _, rule in ipairs(plan.rules) do
    if rule.shadow then
      local from, longest = to + 1, to + 1
      to = to + #rule.windows
      for w = from, to do
        if not waits[w] or waits[w] < 0 then longest = nil end
        if longest and waits[w] > waits[longest] then longest = w end
      end
      if longest and waits[longest] > 0 then waits[longest] = plan.later(s, from, to, waits[longest]) end
    end
  end
end

-- shadow_waits gives, for each window that does not decide, the wait for n more units:
-- false where that can be computed only after the charges.
local function shadow_waits(s, n)
  local plan, waits = s.plan, {}
  for w = plan.decides + 1, plan.n do
    local more = units_of(s, w, n)
    local room = plan.limit[w] - more - s.charged
    if plan.in_flight[w] then -- a check holds no slot
      waits[w] = 0
    elseif more > plan.limit[w] then
      waits[w] = -1
    elseif more == 0 or s.used[w] <= room then
      waits[w] = 0
    else
      waits[w] = room >= 0 and free_at(s, w, room) - s.now
    end
  end
  if plan.later then later_shadows(s, waits) end
  return waits
end

-- is_recorded is true for a key that was charged nothing where its
-- record already has a throttle for each window that is at its limit: there is nothing to
-- write, so the keys that are checked most do not pay for levels.lua. The levels of a
-- shadow rule do not change while nothing is charged.
local function is_recorded(s)
  local plan, text = s.plan, s.text
  if plan.decides == 0 then return true end
  local head = plan.rules[1].head
  if not text or sub(text, 1, #head) ~= head then return false end
  for w = 1, plan.decides do
    if s.used[w] >= plan.lowest[w] then
      local from = s.used[w] >= plan.limit[w] and find(text, '|' .. int(plan.ms[w]) .. ',', 1, true)
      if not from or not find(match(text, '^[^|!]*', from + 1), '100@', 1, true) then return false end
    end
  end
  return true
end

-- read_keys reads each key once. It gives the next place in ARGV, and how many keys there are.
local function read_keys(at, plans, now, partitions, stop)
  local many, k, run, plan, partition = 0, 3 * partitions + 1, nil, nil, nil
  while k <= stop do
    run, plan, partition, at = section_at(at, plans, partitions, stop - k + 1)
    local place, size = 3 * partition - 2, plan.many
    while run > 0 and k <= stop do
      local s = open_key(plan, k, place, now)
      look_at(s)
      if plan.values then at = plan.values(s, at) end
      many, k, run = many + 1, k + size, run - 1
      keys[many] = s
    end
  end
  return at, many
end

-- settle_denied takes back what a denied call was to charge. Checks first..last are its own.
local function settle_denied(first, last, denied)
  for item = first, last do
    local s, kind = item_state[item], item_kind[item]
    denied[s] = kind ~= LOOK or denied[s]
    if not kind then
      s.charged = s.charged - item_cost[item]
    elseif kind ~= LOOK then
      -- Its waits are those after the charge.
      if kind == CHARGE_DENIED then
        item_retry[item] = false
        if s.plan.refused then s.plan.refused(s) end
      end
      for w, ms in pairs(item_shadows[item] or {}) do
        if ms ~= 0 then item_shadows[item][w] = false end
      end
    end
  end
end

-- admits tells whether a key has room for n units more, besides those that the run charges.
local function admits(s, n)
  local plan, used = s.plan, s.used
  if plan.denied_until and plan.decides > 0 and plan.denied_until(s) > s.now then return false end
  n = n + s.charged
  local limit = plan.limit
  for w = 1, plan.decides do
    if used[w] + n > limit[w] and lacks_room(used[w], units_of(s, w, n), limit[w]) then return false end
  end
  return true
end

-- words_at reads the words before a check. It gives the place of its cost in ARGV, its kind, its key, and whether
-- more follow.
local function words_at(at, word, place)
  local kind, more = false, false
  repeat
    at = at + 1
    if word == MORE then
      more = true
    elseif word == KEY then
      place, at = ARGV[at] + 0, at + 1
    else
      kind = word
    end
    word = WORDS[ARGV[at]]
  until not word
  return at, kind, place, more
end

-- decide goes through the calls in their order. It gives how many there are, and the keys of denied ones (nil
-- where there is none).
local function decide(at, many, known)
  local calls, item, stop, denied, place = 0, 0, #ARGV, nil, 0
  while at <= stop do
    calls = calls + 1
    local answered = known and known[calls] and known[calls].answered -- before: it is not charged again
    local first, allowed, more = item + 1, true, false
    repeat
      local kind, word = false, WORDS[ARGV[at]]
      place, more = place + 1, false
      if word then at, kind, place, more = words_at(at, word, place) end
      local cost, s = number(at, 0), place <= many and keys[place]
      if not s then error('ARGV[' .. at .. '] is of key ' .. place) end
      if answered then kind = LOOK end
      local plan, charged, n, retry = s.plan, s.charged, cost, 0
      if n == 0 then n = 1 end
      if not admits(s, n) then
        allowed = false
        retry = charged == 0 and (not kind or kind == LOOK) and wait(s, n, 1, plan.decides)
      end
      item = item + 1
      item_shadows[item] = plan.n > plan.decides and shadow_waits(s, n)
      if kind ~= LOOK then
        charged = charged + cost
        s.charged = charged
      end
      item_state[item], item_cost[item], item_kind[item] = s, cost, kind
      item_retry[item], item_charged[item] = retry, charged
      at = at + 1
    until not more
    call_allowed[calls], call_end[calls] = allowed, item
    if not allowed then
      denied = denied or {}
      settle_denied(first, item, denied)
    end
    -- A denied call charges nothing, and each check is answered as after the whole call.
    if not allowed or item > first then
      for i = first, item do item_charged[i] = item_state[i].charged end
    end
  end
  if at ~= stop + 1 then error('ARGV has ' .. stop .. ' values, expected ' .. at - 1) end
  return calls, denied
end

-- is_near tells whether the decisions lead a key to a level.
local function is_near(s)
  local plan, used, charged = s.plan, s.used, s.charged
  local lowest = plan.lowest
  for w = 1, plan.n do
    if used[w] + charged >= lowest[w] then return true end
  end
  return false
end

-- find_levels reads, where the decisions lead to a level, the records of those keys, which judge compares
-- (levels.lua).
local function find_levels(many, denied)
  local proven
  for i = 1, many do
    local s = keys[i]
    if (s.more > 0 or s.charged >= s.below) and is_near(s) then
      local place = s.place
      local key, text = user_key(KEYS[s.k]), nil
      if s.plan.decides > 0 then text = call('HGET', KEYS[place], key) end
      near_level(s, key, text)
      if s.charged == 0 and is_recorded(s) then
        s.near = false
        if denied then denied[s] = nil end -- its meters were kept when that was recorded
      end
      proven = proven or {}
      if s.near and not proven[place] then
        prove_types(place)
        proven[place] = true
      end
    end
  end
end

-- write charges the keys. It gives how many transitions it wrote.
local function write(many, denied, may_write)
  local transitions = 0
  for i = 1, many do
    local s = keys[i]
    local charged = s.charged
    if charged > 0 then
      charge(s, nil, nil, charged == 1 and '1' or int(charged))
      local plan, used = s.plan, s.used
      if plan.takes then
        look_again(s)
      else
        for w = 1, plan.n do
          if not plan.in_flight[w] then used[w] = used[w] + charged end
        end
      end
    elseif denied and denied[s] and may_write then
      keep(s)
    end
    if s.near then transitions = transitions + judge(s) end
  end
  return transitions
end

-- answer writes the reply. What came in the same run after a check is not in its `used`.
local function answer(transitions, calls, known)
  local n, item = 1, 0
  reply[1] = transitions
  for c = 1, calls do
    n = n + 1
    local from = n
    reply[n] = call_allowed[c] and 1 or 0
    while item < call_end[c] do
      item = item + 1
      local s, retry, waits = item_state[item], item_retry[item], item_shadows[item]
      local cost, plan = item_cost[item], s.plan
      if cost == 0 or item_kind[item] == CHARGE then cost = 1 end
      reply[n + 1] = s.now
      retry = retry or wait(s, cost, 1, plan.decides)
      -- What denies the key for a time can have begun in this run.
      if retry > 0 and s.near and plan.denied_until then retry = max(retry, plan.denied_until(s) - s.now) end
      reply[n + 2] = retry
      n = window_states(reply, n + 2, s, s.charged - item_charged[item])
      if waits then
        for w = plan.decides + 1, plan.n do
          n = n + 1
          reply[n] = waits[w] or wait(s, cost, w, w)
        end
      end
    end
    if known and known[c] then known[c].finish(reply, from, n) end
  end
  for i = #reply, n + 1, -1 do reply[i] = nil end -- of an earlier call
  return reply
end

local function check(may_write)
  if keys[KEPT + 1] or item_state[2 * KEPT] then new_lists() end -- of a call of thousands of keys
  -- Validate the clock and the plans. The costs are validated where they are decided on:
  -- nothing has been written then.
  local now, header, at, plans = clock(), number(2, 1), 3, {}
  local partitions = header % 16384
  header = (header - partitions) / 16384
  local many_plans = header % 4096
  for p = 1, many_plans do plans[p], at = plan_at(at), at + 1 end
  local stop, known, many = #KEYS, nil, nil -- stop: where the keys' meters end
  if header > many_plans then known, at, stop = remembered_calls(at, (header - many_plans) / 4096) end
  at, many = read_keys(at, plans, now, partitions, stop)
  if refusal then return refusal end
  local calls, denied = decide(at, many, known)
  find_levels(many, denied)
  return answer(write(many, denied, may_write), calls, known)
end

function operations.check() return check(true) end

-- look answers where a call may not write: one that is denied, and changes no level. Any other fails at its first
-- write, before it has changed anything.
function operations.look() return check(false) end
