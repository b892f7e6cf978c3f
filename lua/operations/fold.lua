-- fold.lua: counts the events of one read, each at most once. On a single server the events
-- can be of several partitions, on a Cluster of only one.
--
-- KEYS   events, levels, due, outbox, ids of each partition; then the meters of each key
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group  3 how long ids are remembered, in ms
--        4 number of partitions + 16384 * the number of plans; the plans (plan.lua); then sections, each with its
--        keys (section_at in plan.lua); then per key its groups, in time order: count; number of events n, below zero
--        if another group of the key follows; their n IDs, rising, or for each event of the group, an ID, a space,
--        and the id that its producer gave it; its values (distinct.lua), if the plan has any
--        then, if the fold is traced, its trace context, for the transitions (levels.lua)
-- A group is one or more events of one key with the same count that may share an entry, which has the newest time.
--
-- Reply  numbers of events: folded, too late for every window, already counted (they were not pending), duplicates
--        (their producer had sent them before); transitions written
--
-- The gate: XACK returns how many of a group's events were still pending, and exactly that many are counted. All
-- events of a group have the same count, so it does not matter which of them were pending. A batch that was sent
-- twice, claimed by another worker, or folded late by a slow worker adds nothing. Events with ids from their
-- producer pass a second gate, one by one: the id must be new for the key.
--
-- If the events key of a partition is no stream, the call counts the other partitions, and then returns an error.
--
-- include: library, plan, state, reserved, records, levels, counted

-- The offsets of a partition's names in KEYS, from its place, which is the place of levels (records.lua).
local EVENTS, IDS, PARTITION_SIZE = -1, 3, 5

-- These lists are used again from call to call, because new lists would cost more. A call reads only values that it
-- has written.
local keys                    -- the state of each key
local first_group, last_group -- per key
local group_head, group_many  -- per group: where it begins in ARGV, and how many events it has
local group_ms                -- its time
local group_id                -- the ID of its entry; nil if the entry is not at the time of its newest event
local group_put               -- the time of its entry; false if no event of it was counted
local group_units             -- how many units of it were counted
local group_has_ids           -- nil if its producers gave no ids
local group_values            -- where its values begin in ARGV, if the plan has any
local function new_lists()
  keys, first_group, last_group, group_head, group_many, group_ms = {}, {}, {}, {}, {}, {}
  group_id, group_put, group_units, group_has_ids, group_values = {}, {}, {}, {}, {}
end
new_lists()

-- units_per_window returns how many units of each window a group's units take.
local function units_per_window(s, units)
  local list = {}
  for w = 1, s.plan.n do list[w] = units_of(s, w, units) end
  return list
end

-- crossed returns the time of the group that made window w reach a threshold.
local function crossed(s, w, threshold)
  local used, takes = s.before[w], s.plan.takes
  for g = s.first_group, s.last_group do
    local put = group_put[g]
    if put and put > s.now - s.plan.ms[w] then
      used = used + (takes and group_units[g][w] or group_units[g])
      if used >= threshold then return put end
    end
  end
  return s.now
end

-- read_groups reads the groups of a key. It returns the next group and place in ARGV, how many units they have, and
-- how many of their events have ids. Arithmetic on a text that is no number is an error, and cheaper than a check.
local function read_groups(g, at, now, values)
  local planned, with_ids, more = 0, 0, nil
  repeat
    local n = ARGV[at + 1] + 0
    more = n < 0
    if more then n = -n end
    local id = ARGV[at + 1 + n]
    local ms = match(id, '^%d+') + 0
    planned = planned + ARGV[at] * n
    local has_ids = find(id, ' ', 1, true)
    group_has_ids[g] = has_ids
    if has_ids then id, with_ids = match(id, '^%S+'), with_ids + n end
    -- An event whose ID is in the future cannot have happened later than now. With the time
    -- of its ID, it would move every other event of the batch out of the window.
    if ms > now then ms, id = now, nil end
    group_head[g], group_many[g], group_ms[g], group_id[g] = at, n, ms, id
    group_values[g] = at + 2 + n
    g, at = g + 1, at + 2 + n + values
  until not more
  return g, at, planned, with_ids
end

-- find_level reads what the windows of a key hold. The events of this call may bring the key near a level.
local function find_level(s, i, planned, proven)
  if not reaches_level(look_at(s), planned) then return end
  if not proven[s.place] then
    prove_types(s.place)
    proven[s.place] = true
  end
  local key, text = user_key(KEYS[s.k]), nil
  if s.plan.decides > 0 then text = call('HGET', KEYS[s.place], key) end
  near_level(s, key, text)
  s.used, s.before = s.before, s.used
  s.crossed, s.first_group, s.last_group = crossed, first_group[i], last_group[i]
end

-- read reads the sections: each key once, and what its windows hold if a level is near. It returns how many keys there
-- are, the next place in ARGV, and per place of a partition how many of its events have ids; nil if none has.
local function read(at, plans, now, partitions)
  local many, k, g, ids, proven, keys_end = 0, PARTITION_SIZE * partitions + 1, 1, nil, {}, #KEYS
  local alone = partitions == 1 and not plans[2]
  while k <= keys_end do
    local run, plan, partition = keys_end, plans[1], 1
    if not alone then run, plan, partition, at = section_at(at, plans, partitions) end
    local place, values = PARTITION_SIZE * (partition - 1) + 2, plan.valued and #plan.valued or 0
    while run > 0 and k <= keys_end do
      run = run - 1
      local s, planned, with_ids = open_key(plan, k, place, now), nil, nil
      many, k = many + 1, k + plan.many
      keys[many], first_group[many] = s, g
      g, at, planned, with_ids = read_groups(g, at, now, values)
      last_group[many] = g - 1
      if with_ids > 0 then
        ids = ids or {}
        ids[place] = (ids[place] or 0) + with_ids
      end
      if s.more > 0 or planned >= s.below then find_level(s, many, planned, proven) end
    end
  end
  return many, at, ids
end

-- acked reads the reply of an XACK that was called by pcall. It returns the number of events that were acknowledged.
-- If the key is no stream, acked returns 0, and the fold returns an error after it has counted all other events.
local function acked(reply)
  if type(reply) == 'number' then return reply end
  is_wrong_type(reply)
  refusal = {err = reply.err}
  return 0
end

-- acknowledge_new acknowledges the events with ids in ARGV[from] to ARGV[to]. It returns how
-- many were still pending, and how many of those have an id that is new.
local function acknowledge_new(place, from, to, key)
  local pending, new = 0, 0
  for i = from, to do
    local event, id = match(ARGV[i], '^(%S+) (.*)$')
    if acked(pcall('XACK', KEYS[place + EVENTS], ARGV[2], event)) == 1 then
      pending = pending + 1
      new = new + call('ZADD', KEYS[place + IDS], 'NX', match(event, '^%d+'), id .. '\n' .. key)
    end
  end
  return pending, new
end

-- acknowledge acknowledges a group. It returns how many events it has, how many were still pending, how many are new.
local function acknowledge(s, g)
  local from, n, events = group_head[g] + 2, group_many[g], KEYS[s.place + EVENTS]
  if group_has_ids[g] then
    return n, acknowledge_new(s.place, from, from + n - 1, user_key(KEYS[s.k]))
  elseif n == 1 then
    local reply = pcall('XACK', events, ARGV[2], ARGV[from])
    local pending = reply == 1 and 1 or acked(reply)
    return 1, pending, pending
  end
  local to, pending = from + n - 1, 0
  for b = from, to, 1000 do
    pending = pending + acked(pcall('XACK', events, ARGV[2], unpack(ARGV, b, min(b + 999, to))))
  end
  return n, pending, pending
end

-- forget_ids removes ids of events that are older than `remember`. Each call removes up to twice as many as it has
-- added.
local function forget_ids(ids, now, remember)
  for place, n in pairs(ids) do
    local name = KEYS[place + IDS]
    local old = call('ZCOUNT', name, '-inf', int(now - remember))
    if old > 0 then call('ZREMRANGEBYRANK', name, '0', int(min(old, 2 * n) - 1)) end
    call('PEXPIRE', name, int(max(MIN_EXPIRY_MS, remember)))
  end
end

-- write acknowledges all groups, and counts the events that were still pending.
local function write(many)
  local folded, late, already_counted, duplicates, acked = 0, 0, 0, 0, {}
  for i = 1, many do
    local s = keys[i]
    local place = s.place
    for g = first_group[i], last_group[i] do
      local n, pending, new = acknowledge(s, g)
      already_counted, duplicates = already_counted + n - pending, duplicates + pending - new
      acked[place], group_put[g] = (acked[place] or 0) + pending, false
      if new > 0 then
        local ms, count, plan = group_ms[g], ARGV[group_head[g]], s.plan
        if new > 1 then count = int(new * count) end
        if plan.values then plan.values(s, group_values[g]) end
        if s.near then group_units[g] = plan.takes and units_per_window(s, count + 0) or count + 0 end
        if charge(s, ms, group_id[g], count) then
          folded = folded + new
          if s.near then group_put[g] = max(ms, s.meters[1].last) end
        else
          late = late + new
        end
      end
    end
  end
  for place, n in pairs(acked) do count_acked(KEYS[place + LEVELS], n) end
  return folded, late, already_counted, duplicates
end

function operations.fold()
  if keys[KEPT + 1] or group_head[2 * KEPT] then new_lists() end -- of a call of thousands of keys
  -- Validate, and read.
  local now, remember, header = clock(), number(3, 1), number(4, 1)
  local partitions = header % 16384
  local plans, at = plans_at(5, (header - partitions) / 16384)
  local many, ids
  many, at, ids = read(at, plans, now, partitions)
  if at == #ARGV and match(ARGV[at], '^%x+%-%x+%-%x+%-%x+ ') then trace, at = ARGV[at], at + 1 end
  if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end
  -- The types of all keys are proven before the first write, except those of the events (see acked).
  for place in pairs(ids or {}) do call('ZCARD', KEYS[place + IDS]) end
  if refusal then return refusal end

  local folded, late, already_counted, duplicates = write(many)
  if ids then forget_ids(ids, now, remember) end

  -- Evaluate only the keys near a level. Reads cannot fail here, because the types are proven.
  local transitions = 0
  for i = 1, many do
    local s = keys[i]
    if s.near then transitions = transitions + judge(look_at(s)) end
  end
  return refusal or {folded, late, already_counted, duplicates, transitions}
end
