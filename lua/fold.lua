-- fold.lua: counts one batch of events of one partition, each at most once.
--
-- KEYS   1 events  2 levels  3 due  4 outbox  5 ids
--        6..  the counter of each group; groups of one counter stand together,
--        in time order, so a counter may stand several times; then the further
--        counters of groups, rule by rule
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group  3 how long ids are remembered, in ms
--        4 number of rules; per rule: number of its groups, then the rule (prelude.lua);
--        rules for further counters of the groups of rule r come last, with -r for the number
--        then per group: count, number of events n, their n IDs, rising; or
--        for all of a group, an ID, a space, and the id that its producer gave it
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

local EVENTS, LEVELS, DUE, OUTBOX, IDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] -- group i is KEYS[i + 5]
local group, remember = ARGV[2], number(3, 1)

-- Validate: every rule, every group; nothing has been written when it fails.
local now, at = clock(), 5
local rules, rule_ends, groups, g = {}, {}, nil, 0
local shares -- a rule of further counters -> its first group; nil where there is none
for r = 1, number(4, 1) do
  local n = ARGV[at] + 0
  if n < 0 then
    shares, groups = shares or {}, groups or g
    shares[r] = (rule_ends[-n - 1] or 0) + 1
    n = rule_ends[-n] - shares[r] + 1
  end
  g = g + n
  rule_ends[r] = g
  rules[r], at = rule_at(at + 1)
end
groups = groups or g
if g ~= #KEYS - 5 then error('rules name ' .. g .. ' groups, KEYS has ' .. #KEYS - 5) end

-- Arithmetic on what is no number is an error, and cheaper than asking.
-- An event whose producer gave it an ID of the future happened now, at the latest:
-- taken at its word, it would put every other event of the batch out of its window.
local heads = {} -- group -> where it begins in ARGV
local times = {} -- group -> its time in ms
local ahead = {} -- group -> true where that is not the time of its ID
local producer_ids = false -- whether any event has an id of its producer
for i = 1, groups do
  heads[i] = at
  at = at + 2 + ARGV[at + 1]
  local ms = match(ARGV[at - 1], '^%d+') + 0
  if ms > now then ms, ahead[i] = now, true end
  times[i] = ms
  producer_ids = producer_ids or find(ARGV[at - 1], ' ', 1, true)
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end
if shares then
  for r = 1, #rules do
    if shares[r] then
      local by = shares[r] - rule_ends[r - 1] - 1
      for i = rule_ends[r - 1] + 1, rule_ends[r] do
        heads[i], times[i], ahead[i] = heads[i + by], times[i + by], ahead[i + by]
      end
    end
  end
end
if producer_ids then call('ZCARD', IDS) end -- its type is proven

-- Read: each counter once, and what its windows hold where a level is near.
-- A counter's state stands at its first group.
local lasts, totals, owner, near = {}, {}, {}, {}
local prove, judge
local i = 1
for r, rule in ipairs(rules) do
  local open, lowest_threshold = rule.algo.open, rule.lowest_threshold
  while i <= rule_ends[r] do
    local counter, first, planned = KEYS[i + 5], i, 0
    local last, total, bound = open(counter, now, rule)
    lasts[i], totals[i] = last, total
    repeat
      local h = heads[i]
      planned = planned + ARGV[h] * ARGV[h + 1]
      owner[i] = first
      i = i + 1
    until KEYS[i + 5] ~= counter
    if bound + planned >= lowest_threshold then
      local s = {rule = rule, counter = counter, now = last > now and last or now, last = last, total = total}
      local used, close = {}, false
      for w = 1, rule.n do
        used[w] = rule.algo.used(s, w)
        close = close or used[w] + planned >= rule.lowest[w]
      end
      if close then
        if not judge then
          prove, judge = levels(LEVELS, DUE, OUTBOX)
          prove()
        end
        local key = user_key(counter)
        near[#near + 1] = {rule = rule, counter = counter, now = s.now, before = used, key = key,
                           first = first, stop = i - 1,
                           text = rule.decides > 0 and call('HGET', LEVELS, key) or nil}
      end
    end
  end
end

-- acknowledge_new takes events with ids from ARGV[from] to ARGV[to]. It gives how many
-- were still pending, and how many of those have an id that is new.
local function acknowledge_new(from, to, key)
  local acked, new = 0, 0
  for i = from, to do
    local event, id = match(ARGV[i], '^(%S+) (.*)$')
    if call('XACK', EVENTS, group, event) == 1 then
      acked = acked + 1
      new = new + call('ZADD', IDS, 'NX', match(event, '^%d+'), id .. '\n' .. key)
    end
  end
  return acked, new
end

-- Write: acknowledge, and count what was still pending.
local folded, late, already_counted, duplicates = 0, 0, 0, 0
local put, amount = {}, {} -- group -> where it was put, its units; for what is near
local counted = shares and {} -- group -> how many of its events passed the gate
i = 1
for r, rule in ipairs(rules) do
  local add, span = rule.algo.add, rule.span
  local by = shares and shares[r] and shares[r] - i
  for i = i, rule_ends[r] do
    local h, acked = heads[i], 0
    local n, id = ARGV[h + 1], ARGV[h + 2]
    if by then
      acked, id, n = counted[i + by], match(ARGV[h + 1 + n], '^%S+'), counted[i + by]
    elseif producer_ids and find(id, ' ', 1, true) then
      local pending
      pending, acked = acknowledge_new(h + 2, h + 1 + n, user_key(KEYS[i + 5]))
      id = match(ARGV[h + 1 + n], '^%S+')
      duplicates = duplicates + pending - acked
      already_counted = already_counted - (pending - acked)
    elseif n == '1' then
      acked = call('XACK', EVENTS, group, id)
    else
      local last = h + 1 + n
      id = ARGV[last]
      for b = h + 2, last, 1000 do
        acked = acked + call('XACK', EVENTS, group, unpack(ARGV, b, math.min(b + 999, last)))
      end
    end
    already_counted = already_counted + n - acked
    if counted then counted[i] = acked end
    if acked > 0 then
      local o, ms, count = owner[i], times[i], ARGV[h]
      if ahead[i] then id = nil end
      local last = lasts[o]
      if ms <= (last > now and last or now) - span then
        if not by then late = late + acked end
      else
        if not by then folded = folded + acked end
        if acked > 1 then count = int(acked * count) end
        lasts[o], totals[o] = add(KEYS[i + 5], rule, last, totals[o], ms, id, count)
        if near[1] then put[i], amount[i] = lasts[o], count + 0 end
      end
    end
  end
  i = rule_ends[r] + 1
end

-- Ids are remembered for as long as events are kept, and forgotten twice as fast as they come.
if producer_ids then
  local old = call('ZCOUNT', IDS, '-inf', int(now - remember))
  if old > 0 then call('ZREMRANGEBYRANK', IDS, '0', int(math.min(old, 2 * #ARGV) - 1)) end
  call('PEXPIRE', IDS, int(math.max(MIN_EXPIRY_MS, remember)))
end

-- Evaluate: only counters near a level. Reading is safe here, the types are proven.
local transitions = 0
for _, c in ipairs(near) do
  local rule = c.rule
  c.last, c.total, c.used = lasts[c.first], totals[c.first], {}
  for w = 1, rule.n do c.used[w] = rule.algo.used(c, w) end
  c.crossed = function(w, threshold)
    local used = c.before[w]
    for i = c.first, c.stop do
      if put[i] and put[i] > c.now - rule.ms[w] then
        used = used + amount[i]
        if used >= threshold then return put[i] end
      end
    end
    return c.now
  end
  transitions = transitions + judge(c)
end
return {folded, late, already_counted, duplicates, transitions, corrupt_counters}
