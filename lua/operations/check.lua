-- check.lua: may these keys spend these costs now? A call asks for one or more keys at once: all of them are charged
-- or none is. Calls that came at the same time share a run, and are answered as if they had come one after the other.
--
-- KEYS   levels, due, outbox of each partition; then the meters of each key, each key once; then the keys
--        of idempotency.lua
-- ARGV   1 now_ms ('' = the server's clock)  2 partitions + 16384 * (plans + 4096 * calls that idempotency.lua
--        knows); the plans (plan.lua); the arguments of idempotency.lua; sections, until all keys are in one
--        (section_at in plan.lua), each with the values of its keys (distinct.lua; such a key has one check in a
--        call); then per check: words that describe it (WORDS below), none for a plain check;
--        and its cost. (An argument costs a thousand instructions, and so does a number.) A cost of 0 charges nothing
--        and asks whether one unit would be admitted
-- Reply  transitions written; then per call: allowed (1|0; idempotency.lua describes the value for the calls that it
--        knows), and per check: now, retry_ms (0 = it is admitted, -1 = it can never be), per window the state of the
--        key (window_states in state.lua), and per window that does not decide what its retry_ms would have been
--
-- A denied call writes only its transition, if there is one, and the counts of those kinds of
-- checks that are charged anyway. A run writes one entry for all that it charges to a key.
--
-- include: library, plan, state, reserved, records, levels, idempotency

-- The kinds of checks that are not plain ones.
local LOOK = 'l'          -- charges nothing, but can deny the call
local CHARGE = 'c'        -- is charged whatever the windows hold. It is denied if it exceeds the
--                           limit, and its retry_ms is then the wait for one unit. A call with
--                           such checks has no plain check
local CHARGE_DENIED = 'd' -- like a plain one, but also charged if the call is denied
local MORE = '+'          -- another check of the same call follows
local KEY = 'k'           -- the number of its key follows, from 1; without it, the key after the last check's key
local WORDS = {l = LOOK, c = CHARGE, d = CHARGE_DENIED, ['+'] = MORE, k = KEY}

-- These lists are used again from call to call, because new lists would cost more. A call reads only values that it
-- has written.
local keys, checks, reply -- keys are the states of the keys
local long                -- the last call had hundreds of keys or checks, so the next one does not use its lists
local function new_lists() keys, checks, reply, long = {}, {}, {}, false end
new_lists()

-- A check c has cost and kind, which is false for a plain check, and
--   s        the state of its key
--   retry    its retry_ms; false if it can be computed only after the charges
--   charged  how many units the run has charged to its key up to and with this check
--   shadows  its shadow_waits; false if it has none
--   allowed  in the first check of a call, 1 or 0: whether the call is allowed; otherwise false
--   known    in the last check of a call, what idempotency.lua knows of the call; otherwise false
local function new_check(i)
  checks[i] = {s = false, cost = 0, kind = false, retry = 0, charged = 0, shadows = false, allowed = false,
               known = false}
  return checks[i]
end

-- later_shadows extends the waits of each shadow rule until all of its windows have room at once (plan.lua: later).
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

-- shadow_waits returns, for each window that does not decide, the wait for n more units:
-- false if it can be computed only after the charges.
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

-- is_recorded returns true if the record of a key already has a throttle for each window that is at its limit. It
-- is called for a key that is charged nothing. Then there is nothing to write, so the keys that are checked most do
-- not pay for levels.lua. The levels of a shadow rule do not change while nothing is charged.
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

-- read_keys reads each key once. It returns the next place in ARGV, and how many keys there are.
local function read_keys(at, plans, now, partitions, stop)
  local many, k, alone = 0, 3 * partitions + 1, partitions == 1 and not plans[2]
  while k <= stop do
    local plan, place, last = plans[1], 1, stop
    if not alone then
      local run, partition
      run, plan, partition, at = section_at(at, plans, partitions)
      place, last = 3 * partition - 2, min(stop, k + run * plan.many - 1)
    end
    local values = plan.values
    for k = k, last, plan.many do
      local s = look_at(open_key(plan, k, place, now))
      if values then at = values(s, at) end
      many = many + 1
      keys[many] = s
    end
    k = last + 1
  end
  return at, many
end

-- settle_denied takes back what a denied call was to charge. The call's checks are first..last.
local function settle_denied(first, last, denied)
  for i = first, last do
    local c = checks[i]
    local s, kind = c.s, c.kind
    denied[s] = kind ~= LOOK or denied[s]
    if not kind then
      s.charged = s.charged - c.cost
    elseif kind ~= LOOK then
      -- It is charged, so its waits are computed after the charge.
      if kind == CHARGE_DENIED then
        c.retry = false
        if s.plan.refused then s.plan.refused(s) end
      end
      for w, ms in pairs(c.shadows or {}) do
        if ms ~= 0 then c.shadows[w] = false end
      end
    end
  end
end

-- admits returns whether a key has room for n units, which include the units that the run has charged.
local function admits(s, n)
  local plan, used = s.plan, s.used
  if plan.denied_until and plan.decides > 0 and plan.denied_until(s) > s.now then return false end
  local limit = plan.limit
  for w = 1, plan.decides do
    if used[w] + n > limit[w] and lacks_room(used[w], units_of(s, w, n), limit[w]) then return false end
  end
  return true
end

-- words_at reads the words before a check. It returns the place of the check's cost in ARGV, its kind, its key, and
-- whether more checks of the call follow.
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

-- decide goes through the calls in their order. It returns the number of checks, the keys of the denied checks (nil if
-- no check is denied), and whether a key may be near a level.
local function decide(at, many, known)
  local calls, i, stop, denied, may_be_near, place = 0, 0, #ARGV, nil, false, 0
  while at <= stop do
    calls = calls + 1
    local before = known and known[calls]
    local first, allowed, more, c = i + 1, true, nil, nil
    repeat
      local kind, word = false, WORDS[ARGV[at]]
      place, more = place + 1, false
      if word then at, kind, place, more = words_at(at, word, place) end
      local cost, s = ARGV[at] + 0, place <= many and keys[place]
      if not (cost >= 0 and cost < 9007199254740992 and cost % 1 == 0) then number(at, 0) end -- which fails
      if not s then error('ARGV[' .. at .. '] is of key ' .. place) end
      if before and before.answered then kind = LOOK end -- it is not charged again
      local plan, charged, n, retry = s.plan, s.charged, cost, 0
      if n == 0 then n = 1 end
      if not admits(s, n + charged) then
        allowed = false
        retry = charged == 0 and (not kind or kind == LOOK) and wait(s, n, 1, plan.decides)
      end
      i, at = i + 1, at + 1
      c = checks[i] or new_check(i)
      c.shadows = plan.n > plan.decides and shadow_waits(s, n)
      if kind ~= LOOK then
        charged = charged + cost
        s.charged = charged
      end
      if charged >= s.below or s.more > 0 then may_be_near = true end
      c.s, c.cost, c.kind, c.retry, c.charged, c.allowed, c.known = s, cost, kind, retry, charged, false, false
    until not more
    checks[first].allowed, c.known = allowed and 1 or 0, before
    if not allowed then
      denied = denied or {}
      settle_denied(first, i, denied)
    end
    -- A denied call charges nothing. Each check is answered with the state after the whole call.
    if not allowed or i > first then
      for j = first, i do checks[j].charged = checks[j].s.charged end
    end
  end
  if at ~= stop + 1 then error('ARGV has ' .. stop .. ' values, expected ' .. at - 1) end
  return i, denied, may_be_near
end

-- find_levels reads, for judge (levels.lua), the records of the keys that reach a level with these decisions.
local function find_levels(many, denied)
  local proven
  for i = 1, many do
    local s = keys[i]
    if (s.more > 0 or s.charged >= s.below) and reaches_level(s, s.charged) then
      local place = s.place
      local key, text = user_key(KEYS[s.k]), nil
      if s.plan.decides > 0 then text = call('HGET', KEYS[place], key) end
      near_level(s, key, text)
      if s.charged == 0 and is_recorded(s) then
        s.near = false
        if denied then denied[s] = nil end -- the call that wrote the record extended the expiry of its meters
      end
      proven = proven or {}
      if s.near and not proven[place] then
        prove_types(place)
        proven[place] = true
      end
    end
  end
end

-- write charges the keys. It returns how many transitions it wrote.
local function write(many, denied, only_look)
  local transitions = 0
  for i = 1, many do
    local s = keys[i]
    local charged = s.charged
    if charged > 0 then
      charge(s, nil, nil, charged == 1 and '1' or int(charged))
      local plan, used = s.plan, s.used
      if plan.takes then
        look_at(s)
      else
        for w = 1, plan.n do
          if not plan.in_flight[w] then used[w] = used[w] + charged end
        end
      end
    elseif denied and denied[s] and not only_look then
      keep(s)
    end
    if s.near then transitions = transitions + judge(s) end
  end
  return transitions
end

-- write_reply writes the answers to all calls. The `used` of a check does not include later charges of the same run.
local function write_reply(transitions, many)
  local n, from = 1, nil -- from: where the answer to the call begins
  reply[1] = transitions
  for i = 1, many do
    local c = checks[i]
    local s, retry, waits, cost = c.s, c.retry, c.shadows, c.cost
    local plan = s.plan
    if c.allowed then
      n = n + 1
      from, reply[n] = n, c.allowed
    end
    if cost == 0 or c.kind == CHARGE then cost = 1 end
    retry = retry or wait(s, cost, 1, plan.decides)
    -- A charge of this run may have caused a time in which the key is denied.
    if retry > 0 and s.near and plan.denied_until then retry = max(retry, plan.denied_until(s) - s.now) end
    reply[n + 1] = s.now
    n = n + 2
    reply[n] = retry
    n = window_states(reply, n, s, s.charged - c.charged)
    if waits then
      for w = plan.decides + 1, plan.n do
        n = n + 1
        reply[n] = waits[w] or wait(s, cost, w, w)
      end
    end
    if c.known then c.known.finish(reply, from, n) end
  end
  for i = #reply, n + 1, -1 do reply[i] = nil end -- of an earlier call
  return reply
end

local function check(only_look)
  if long then new_lists() end
  -- Validate the clock and the plans. decide validates the costs. Nothing has been written by then.
  local now, header, stop = clock(), number(2, 1), #KEYS -- stop: where the keys' meters end
  local plans, known, at, many
  long = #ARGV > KEPT
  local partitions = header % 16384
  header = (header - partitions) / 16384
  local many_plans = header % 4096
  plans, at = plans_at(3, many_plans)
  if header > many_plans then known, at, stop = remembered_calls(at, (header - many_plans) / 4096) end
  at, many = read_keys(at, plans, now, partitions, stop)
  if refusal then return refusal end
  local many_checks, denied, may_be_near = decide(at, many, known)
  if may_be_near then find_levels(many, denied) end
  return write_reply(write(many, denied, only_look), many_checks)
end

operations.check = check

-- look answers if a call must not write. It works for a call that is denied and changes no level. Any other call fails
-- at its first write, before it has changed anything.
function operations.look() return check(true) end
