-- fold.lua: counts the events of one read, each at most once. On one server these are
-- of several partitions, on a Cluster of one.
--
-- KEYS   events, levels, due, outbox, ids of each partition; then the counter of each
--        group, section by section. Groups of one counter stand together, in time
--        order, so a counter may stand several times
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group  3 how long ids are remembered, in ms
--        4 number of partitions  5 number of rules; the rules (prelude.lua);
--        sections, until all counters have theirs: how many groups, their rule, their
--        partition. Sections of further counters of the groups come last, with the
--        section whose groups they are, below zero, for the partition. All are numbered from 1
--        then per group: count, number of events n, their n IDs, rising; or
--        for all of a group, an ID, a space, and the id that its producer gave it
--        then, where the fold is traced, its trace context, for the transitions (levels.lua)
-- A group is one or more events of one key with the same count that may share
-- an entry: it is put at the time of its newest event.
--
-- Reply  numbers of events: folded, too late for every window, already counted (they were
--        not pending), duplicates (their producer had sent them before); transitions
--        written; corrupt counters
--
-- The gate: XACK says how many of a group's events were still pending, and just
-- so many are counted. All have the same count, so it need not say which. A
-- batch that was sent twice, claimed by another worker, or folded by a worker
-- that slept adds nothing. Events whose producer gave them ids pass a second
-- gate, one by one: the id must be new for the key.
--
-- include: prelude, levels

-- Where the names of a partition stand, after its place in KEYS.
local EVENTS, LEVELS, DUE, OUTBOX, IDS, PARTITION_SIZE = 1, 2, 3, 4, 5, 5

local group, remember = ARGV[2], number(3, 1)

-- Validate: every rule, section and group; nothing has been written when it fails.
local now, partitions = clock(), number(4, 1)
local first = PARTITION_SIZE * partitions -- the counter of group i is KEYS[first + i]
local rules, at = {}, 6
for r = 1, number(5, 1) do rules[r], at = rule_at(at) end

-- A section: rule; place (of its partition in KEYS); from, to (its groups); and of
-- further counters by, the distance to the groups that they count besides.
local sections, g, groups = {}, 0, nil
while first + g < #KEYS do
  local n, rule, p = number(at, 1), rules[number(at + 1, 1)], ARGV[at + 2] + 0
  local section = {rule = rule, place = PARTITION_SIZE * (p - 1), from = g + 1, to = g + n, by = nil}
  if p < 0 then
    local of = sections[-p]
    groups = groups or g
    section.place, section.by = of.place, of.from - g - 1
    if of.by or of.to - of.from ~= n - 1 then error('section ' .. #sections + 1 .. ' has other groups') end
  elseif not rule or p < 1 or p > partitions or p % 1 ~= 0 or groups then
    error('section ' .. #sections + 1 .. ' is of rule ' .. ARGV[at + 1] .. ' and partition ' .. p)
  end
  g, at = g + n, at + 3
  sections[#sections + 1] = section
end
groups = groups or g
if first + g ~= #KEYS then error('sections name ' .. g .. ' groups, KEYS has ' .. #KEYS - first) end

-- Of each group SIZE values in one list, as a table per group, or a list per value,
-- would cost more:
local HEAD = 0  -- where it begins in ARGV
local MS = 1    -- its time
local OWNER = 2 -- where the first group of its counter begins here
local LAST = 3  -- of the first: the state of the counter (prelude.lua)
local TOTAL = 4
local SIZE = 5
local list = {0, 0, 0, 0, 0}

-- Arithmetic on what is no number is an error, and cheaper than asking.
-- An event whose producer gave it an ID of the future happened now, at the latest:
-- taken at its word, it would put every other event of the batch out of its window.
local ahead -- group -> true where that is not the time of its ID; nil where there is none
local ids   -- place of a partition -> how many of its events have an id; nil where none has
local k = 1
for _, section in ipairs(sections) do
  if section.by then
    local other = k + SIZE * section.by
    for i = section.from, section.to do
      list[k + HEAD], list[k + MS] = list[other + HEAD], list[other + MS]
      if ahead then ahead[i] = ahead[i + section.by] end
      k, other = k + SIZE, other + SIZE
    end
  else
    for i = section.from, section.to do
      local head = at
      at = at + 2 + ARGV[at + 1]
      local id = ARGV[at - 1]
      local ms = match(id, '^%d+') + 0
      if ms > now then
        ahead = ahead or {}
        ms, ahead[i] = now, true
      end
      if find(id, ' ', 1, true) then
        ids = ids or {}
        ids[section.place] = (ids[section.place] or 0) + ARGV[head + 1]
      end
      list[k] = head
      list[k + 1] = ms
      list[k + 2] = k
      list[k + 3] = 0
      list[k + 4] = 0
      k = k + SIZE
    end
  end
end
if at == #ARGV and match(ARGV[at], '^%x+%-%x+%-%x+%-%x+$') then traceparent, at = ARGV[at], at + 1 end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end

-- What is written below and not read before has its type proven. (The only partition's
-- events are proven by its first XACK, as that is the first write.)
if partitions > 1 then
  for place = 0, first - 1, PARTITION_SIZE do call('XLEN', KEYS[place + EVENTS]) end
end
if ids then
  for place in pairs(ids) do call('ZCARD', KEYS[place + IDS]) end
end

-- Read: each counter once, and what its windows hold where a level is near.
local near, judges -- nil where there is none; place of a partition -> its judge
local i = 1
k = 1
for _, section in ipairs(sections) do
  local rule, place, to = section.rule, section.place, section.to
  local open, lowest_threshold = rule.algo.open, rule.lowest_threshold
  while i <= to do
    local counter, owner, planned = KEYS[first + i], k, 0
    local last, total, bound = open(counter, now, rule)
    local held
    if marks and marks[counter] then
      held = read_reserved(KEYS[place + LEVELS], user_key(counter), now)
      marks[counter] = held
      if held then bound = bound + held.units end
    end
    list[k + LAST] = last
    list[k + TOTAL] = total
    repeat
      local head = list[k]
      planned = planned + ARGV[head] * ARGV[head + 1]
      list[k + OWNER] = owner
      i, k = i + 1, k + SIZE
    until KEYS[first + i] ~= counter
    if bound + planned >= lowest_threshold then
      local s = {rule = rule, counter = counter, now = last > now and last or now, last = last, total = total,
                 reserved = held}
      local used, close = {}, false
      for w = 1, rule.n do
        used[w] = used_in(s, w)
        close = close or used[w] + planned >= rule.lowest[w]
      end
      if close then
        near, judges = near or {}, judges or {}
        if not judges[place] then
          local prove, judge = levels(KEYS[place + LEVELS], KEYS[place + DUE], KEYS[place + OUTBOX])
          prove()
          judges[place] = judge
        end
        local key = user_key(counter)
        near[#near + 1] = {rule = rule, counter = counter, now = s.now, before = used, key = key, place = place,
                           owner = owner, stop = k - 1, reserved = held,
                           text = rule.decides > 0 and call('HGET', KEYS[place + LEVELS], key) or nil}
      end
    end
  end
end

-- acknowledge_new takes events with ids from ARGV[from] to ARGV[to]. It gives how many
-- were still pending, and how many of those have an id that is new.
local acknowledge_new = ids and function(place, from, to, key)
  local acked, new = 0, 0
  for i = from, to do
    local event, id = match(ARGV[i], '^(%S+) (.*)$')
    if call('XACK', KEYS[place + EVENTS], group, event) == 1 then
      acked = acked + 1
      new = new + call('ZADD', KEYS[place + IDS], 'NX', match(event, '^%d+'), id .. '\n' .. key)
    end
  end
  return acked, new
end

-- Write: acknowledge, and count what was still pending.
local folded, late, already_counted, duplicates = 0, 0, 0, 0
local put, amount = near and {}, near and {} -- where a group begins in the list -> where it was put, its units
local counted = groups < g and {} -- group -> how many of its events passed the gate
k = 1
for _, section in ipairs(sections) do
  local rule, place, by = section.rule, section.place, section.by
  local add, span, events = rule.algo.add, rule.span, KEYS[place + EVENTS]
  for i = section.from, section.to do
    local head, acked = list[k], 0
    local n, id = ARGV[head + 1], ARGV[head + 2]
    if by then
      acked, id, n = counted[i + by], match(ARGV[head + 1 + n], '^%S+'), counted[i + by]
    elseif ids and find(id, ' ', 1, true) then
      local pending
      pending, acked = acknowledge_new(place, head + 2, head + 1 + n, user_key(KEYS[first + i]))
      id = match(ARGV[head + 1 + n], '^%S+')
      duplicates = duplicates + pending - acked
      already_counted = already_counted - (pending - acked)
    elseif n == '1' then
      acked = call('XACK', events, group, id)
    else
      local last = head + 1 + n
      id = ARGV[last]
      for b = head + 2, last, 1000 do
        acked = acked + call('XACK', events, group, unpack(ARGV, b, math.min(b + 999, last)))
      end
    end
    already_counted = already_counted + n - acked
    if counted then counted[i] = acked end
    if acked > 0 then
      local o, ms, count = list[k + OWNER], list[k + MS], ARGV[head]
      if ahead and ahead[i] then id = nil end
      local last = list[o + LAST]
      if ms <= (last > now and last or now) - span then
        if not by then late = late + acked end
      else
        if not by then folded = folded + acked end
        if acked > 1 then count = int(acked * count) end
        last, list[o + TOTAL] = add(KEYS[first + i], rule, last, list[o + TOTAL], ms, id, count)
        list[o + LAST] = last
        if near then put[k], amount[k] = last, count + 0 end
      end
    end
    k = k + SIZE
  end
end

-- Ids are remembered for as long as events are kept, and forgotten twice as fast as they come.
if ids then
  for place, n in pairs(ids) do
    local name = KEYS[place + IDS]
    local old = call('ZCOUNT', name, '-inf', int(now - remember))
    if old > 0 then call('ZREMRANGEBYRANK', name, '0', int(math.min(old, 2 * n) - 1)) end
    call('PEXPIRE', name, int(math.max(MIN_EXPIRY_MS, remember)))
  end
end

-- Evaluate: only counters near a level. Reading is safe here, the types are proven.
local transitions = 0
for _, c in ipairs(near or {}) do
  local rule = c.rule
  c.last, c.total, c.used = list[c.owner + LAST], list[c.owner + TOTAL], {}
  for w = 1, rule.n do c.used[w] = used_in(c, w) end
  c.crossed = function(w, threshold)
    local used = c.before[w]
    for k = c.owner, c.stop, SIZE do
      if put[k] and put[k] > c.now - rule.ms[w] then
        used = used + amount[k]
        if used >= threshold then return put[k] end
      end
    end
    return c.now
  end
  transitions = transitions + judges[c.place](c)
end
return {folded, late, already_counted, duplicates, transitions, corrupt_counters}
