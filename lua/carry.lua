-- carry.lua: what keys have spent stays where their rule passes from one exact algorithm to
-- another: the first to touch such a key writes the old counter's entries into the new one.
--
-- KEYS   per key the counter under the present algorithm, then those of other algorithms
-- ARGV   1 now_ms ('' = the server's clock)  2 how long a marker stands in the place of each
--        other counter, in ms; 0: there is none  3 number of rules; per rule: the rule
--        (prelude.lua), number of its keys, number n of other counters of each, and their
--        n algorithms
-- Reply  how many keys were looked at, of the first: a script stays short; how many of them
--        had something to carry
--
-- Processes read their rules at different times. A marker tells those that come later where
-- the key is counted now (was_carried in prelude.lua); it is left also where there was nothing
-- to carry, as such a process would begin an old counter beside the new one. Where an old
-- counter comes to be again after all, it is carried again, and both are one: unless it began
-- before the present one did. Then a shadow rule has counted the same events in that, and
-- only what is older is carried.
--
-- Up to EXACT entries keep their ms. Of a longer log the newer ones are put together, up to
-- GROUPS of them: each at its last ms, so they count longer, never shorter.
--
-- include: prelude, totals, packed, ring

local EXACT, GROUPS = 4000, 1000
carrying = true

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
local now, marker_ms, at, k = clock(), number(2, 0), 4, 1
local items = {}
for _ = 1, number(3, 1) do
  local rule, name = nil, ARGV[at]
  rule, at = rule_at(at)
  rule.setting = math.max(rule.setting, floor(rule.span / 8)) -- most entries leave the upkeep to another
  local keys, from = number(at, 1), {}
  for i = 1, number(at + 1, 1) do
    local name = ARGV[at + 1 + i]
    from[i], from[name] = algorithms[name] or error('unknown algorithm ' .. name), true
  end
  at = at + 2 + #from
  for _ = 1, keys do
    items[#items + 1] = {rule = rule, name = name, from = from, at = k}
    k = k + 1 + #from
  end
end
if k ~= #KEYS + 1 or at ~= #ARGV + 1 then error('KEYS has ' .. #KEYS .. ' names, expected ' .. k - 1) end

-- Read and write, key by key: opening a counter proves its type, so nothing fails here.
local looked, carried, entries = 0, 0, 0
for _, item in ipairs(items) do
  local rule, counter, old, times, units = item.rule, KEYS[item.at], {}, nil, nil
  -- A marker in the counter's own place that names none of those: there the key is counted.
  local elsewhere = is_marker(counter) and not is_marker(counter, item.from)
  for i, algo in ipairs(item.from) do
    local old_counter = KEYS[item.at + i]
    if not elsewhere and not is_marker(old_counter) then
      local old_times, old_units = entries_of(algo, old_counter, now, rule.span)
      if marks and marks[old_counter] then -- a mark of reservations alone is carried too
        marks[counter] = {rest = DAY}
        if not old_times[1] then times, units = times or {}, units or {} end
      end
      if old_times[1] then
        if not times or not times[1] then times, units = entries_of(rule.algo, counter, now, rule.span) end
        times, units = merge(times, units, old_times, old_units)
      end
      if old_times[1] or marks and marks[old_counter] or marker_ms > 0 then old[#old + 1] = old_counter end
    end
  end
  if times or is_marker(counter, item.from) then call('UNLINK', counter) end
  if old[1] then call('UNLINK', unpack(old)) end
  if marker_ms > 0 then
    for _, old_counter in ipairs(old) do
      call('SET', old_counter, 'carried:' .. item.name, 'PX', int(marker_ms))
    end
  end
  if times then
    refunds[counter] = nil
    local last, total = rule.algo.open(counter, now, rule)
    for i, ms in ipairs(times) do
      last, total = rule.algo.add(counter, rule, last, total, ms, nil, int(units[i]))
    end
    if marks and marks[counter] and not times[1] then rule.algo.add(counter, rule, last, total, now, nil, '0') end
    carried, entries = carried + 1, entries + #times
  end
  looked = looked + 1
  if entries >= EXACT then break end
end
return {looked, carried}
