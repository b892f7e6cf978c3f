-- carry.lua: what keys have spent stays where their rule passes from one exact algorithm to
-- another: the first to touch such a key writes the old counter's entries into the new one.
--
-- KEYS   per key the counter under the present algorithm, then those of other algorithms
-- ARGV   1 now_ms ('' = the server's clock)  2 number of rules; per rule: the rule
--        (prelude.lua), number of its keys, number n of other counters of each, and their
--        n algorithms
-- Reply  how many keys were looked at, of the first: a script stays short; how many of them
--        had something to carry
--
-- A counter of the old form can come to be again after it was carried, as processes read
-- their rules at different times. Then it is carried again, and both are one: unless it began
-- before the present one did. Then a shadow rule has counted the same events in that, and
-- only what is older is carried.
--
-- Up to EXACT entries keep their ms. Of a longer log the newer ones are put together, up to
-- GROUPS of them: each at its last ms, so they count longer, never shorter.
--
-- include: prelude, totals, packed, ring

local EXACT, GROUPS = 4000, 1000

-- entries_of gives what a counter holds in its longest window: the ms of each entry and its
-- units, oldest first. It asks for what is used after each entry, so it is written once.
local function entries_of(algo, counter, now, span)
  local s = state_of({algo = algo, setting = 0, span = span, n = 1, ms = {span}}, counter, now)
  local times, units, left, step = {}, {}, s.used[1], 0
  while left > 0 and #times < EXACT + GROUPS do
    local ms = algo.free_at(s, 1, left - 1) - s.rule.ms[1]
    if #times == EXACT then step = math.ceil((s.last - ms) / GROUPS) end
    ms = math.min(s.last, ms + step)
    s = {rule = {algo = algo, span = span, n = 1, ms = {s.now - ms}}, counter = counter, now = s.now, last = s.last,
         total = s.total}
    local after = ms < s.last and algo.used(s, 1) or 0
    if after >= left or after < 0 then break end -- foreign
    times[#times + 1], units[#units + 1] = ms, left - after
    left = after
  end
  if left > 0 then times[#times + 1], units[#units + 1] = s.last, left end
  return times, units
end

-- merge gives the entries of two counters as those of one.
local function merge(times, units, more_times, more_units)
  local to = #more_times
  if times[1] and more_times[1] and more_times[1] <= times[1] then
    to = 0
    while to < #more_times and more_times[to + 1] < times[1] do to = to + 1 end
  end
  local all_times, all_units, i, k = {}, {}, 1, 1
  for n = 1, #times + to do
    if k > to or times[i] and times[i] <= more_times[k] then
      all_times[n], all_units[n], i = times[i], units[i], i + 1
    else
      all_times[n], all_units[n], k = more_times[k], more_units[k], k + 1
    end
  end
  return all_times, all_units
end

-- Validate.
local now, at, k = clock(), 3, 1
local items = {}
for _ = 1, number(2, 1) do
  local rule
  rule, at = rule_at(at)
  rule.setting = math.max(rule.setting, floor(rule.span / 8)) -- most entries leave the upkeep to another
  local keys, from = number(at, 1), {}
  for i = 1, number(at + 1, 1) do
    local name = ARGV[at + 1 + i]
    from[i] = algorithms[name] or error('unknown algorithm ' .. name)
  end
  at = at + 2 + #from
  for _ = 1, keys do
    items[#items + 1] = {rule = rule, from = from, at = k}
    k = k + 1 + #from
  end
end
if k ~= #KEYS + 1 or at ~= #ARGV + 1 then error('KEYS has ' .. #KEYS .. ' names, expected ' .. k - 1) end

-- Read and write, key by key: opening a counter proves its type, so nothing fails here.
local looked, carried, entries = 0, 0, 0
for _, item in ipairs(items) do
  local rule, counter, old, times, units = item.rule, KEYS[item.at], {}, nil, nil
  for i, algo in ipairs(item.from) do
    local old_counter = KEYS[item.at + i]
    local old_times, old_units = entries_of(algo, old_counter, now, rule.span)
    if old_times[1] then
      if not times then times, units = entries_of(rule.algo, counter, now, rule.span) end
      times, units = merge(times, units, old_times, old_units)
      old[#old + 1] = old_counter
    end
  end
  if times then
    call('UNLINK', counter, unpack(old))
    refunds[counter] = nil
    local last, total = rule.algo.open(counter, now, rule)
    for i, ms in ipairs(times) do
      last, total = rule.algo.add(counter, rule, last, total, ms, nil, int(units[i]))
    end
    carried, entries = carried + 1, entries + #times
  end
  looked = looked + 1
  if entries >= EXACT then break end
end
return {looked, carried}
