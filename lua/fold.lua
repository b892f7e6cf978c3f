-- fold.lua: counts one batch of events of one partition, each at most once.
--
-- KEYS   1 events  2 levels  3 due  4 outbox  5 ids
--        6..  the counter of each group; groups of one counter stand together,
--        in time order, so a counter may stand several times
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group  3 how long ids are remembered, in ms
--        4 number of rules; per rule: number of its groups, then the rule (prelude.lua)
--        then per group: count, number of events n, their n IDs, rising; or
--        for all of a group, an ID, a space, and the id that its producer gave it
-- A group is one or more events of one key with the same count that may share
-- an entry: it is put at the time of its newest event.
--
-- Reply  folded events, events too late for every window, events that somebody
--        else has counted, events whose producer had sent them before, transitions
--        written, counters found unreadable
--
-- The gate: XACK says how many of a group's events were still pending, and just
-- so many are counted. All have the same count, so it need not say which. A
-- batch that was sent twice, claimed by another worker, or folded by a worker
-- that slept adds nothing. Events whose producer gave them ids pass a second
-- gate, one by one: the id must be new for the key.

local EVENTS, LEVELS, DUE, OUTBOX, IDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] -- group i is KEYS[i + 5]
local group, remember = ARGV[2], number(3, 1)

-- Validate: every rule, every group; nothing has been written when it fails.
local now, at = clock(), 5
local groups = #KEYS - 5
local rules, rule_ends, g = {}, {}, 0
for r = 1, number(4, 1) do
  g = g + number(at, 1)
  rule_ends[r] = g
  rules[r], at = rule_at(at + 1)
end
if g ~= groups then error('rules name ' .. g .. ' groups, KEYS has ' .. groups) end

-- Arithmetic on what is no number is an error, and cheaper than asking.
-- An event whose producer gave it an ID of the future happened now, at the latest:
-- taken at its word, it would put every other event of the batch out of its window.
local heads, times, ahead, given = {}, {}, {}, false -- group -> where it stands in ARGV, its time, whether that is not its ID's; any ids
for i = 1, groups do
  heads[i] = at
  at = at + 2 + ARGV[at + 1]
  local ms = match(ARGV[at - 1], '^%d+') + 0
  if ms > now then ms, ahead[i] = now, true end
  times[i] = ms
  given = given or find(ARGV[at - 1], ' ', 1, true)
end
if at ~= #ARGV + 1 then error('ARGV has ' .. #ARGV .. ' values, expected ' .. at - 1) end
if given then call('ZCARD', IDS) end -- its type is proven

-- Read: each counter once, and what its windows hold where a level is near.
-- A counter's state stands at its first group.
local lasts, totals, owner, near = {}, {}, {}, {}
local prove, judge
local i = 1
for r, rule in ipairs(rules) do
  local open, floor = rule.algo.open, rule.floor
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
    if bound + planned >= floor then
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
        near[#near + 1] = {rule = rule, counter = counter, now = s.now, before = used, key = key, first = first, stop = i - 1,
                           text = call('HGET', LEVELS, key)}
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
local folded, late, gone, again = 0, 0, 0, 0
local put, amount = {}, {} -- group -> where it was put, its units; for what is near
i = 1
for r, rule in ipairs(rules) do
  local add, span = rule.algo.add, rule.span
  for i = i, rule_ends[r] do
    local h, acked = heads[i], 0
    local n, id = ARGV[h + 1], ARGV[h + 2]
    if given and find(id, ' ', 1, true) then
      local pending
      pending, acked = acknowledge_new(h + 2, h + 1 + n, user_key(KEYS[i + 5]))
      id = match(ARGV[h + 1 + n], '^%S+')
      again = again + pending - acked
      gone = gone - (pending - acked)
    elseif n == '1' then
      acked = call('XACK', EVENTS, group, id)
    else
      local last = h + 1 + n
      id = ARGV[last]
      for b = h + 2, last, 1000 do
        acked = acked + call('XACK', EVENTS, group, unpack(ARGV, b, math.min(b + 999, last)))
      end
    end
    gone = gone + n - acked
    if acked > 0 then
      local o, ms, count = owner[i], times[i], ARGV[h]
      if ahead[i] then id = nil end
      local last = lasts[o]
      if ms <= (last > now and last or now) - span then
        late = late + acked
      else
        folded = folded + acked
        if acked > 1 then count = int(acked * count) end
        lasts[o], totals[o] = add(KEYS[i + 5], rule, last, totals[o], ms, id, count)
        if near[1] then put[i], amount[i] = lasts[o], count + 0 end
      end
    end
  end
  i = rule_ends[r] + 1
end

-- Ids are remembered for as long as events are kept, and forgotten twice as fast as they come.
if given then
  local old = call('ZCOUNT', IDS, '-inf', int(now - remember))
  if old > 0 then call('ZREMRANGEBYRANK', IDS, '0', int(math.min(old, 2 * #ARGV) - 1)) end
  call('PEXPIRE', IDS, int(math.max(LEAST, remember)))
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
return {folded, late, gone, again, transitions, unreadable}
