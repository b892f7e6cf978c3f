-- mixed.lua: windows of several algorithms as one counter, for a rule whose windows name different
-- ones: each part counts its own windows, and all are charged in one step.
--
-- The counter's name has the forms of its parts, joined by '+', and stands for no key of Redis:
--   sc:{3}:log+calendar:user:1  has the parts  sc:{3}:log:user:1  and  sc:{3}:calendar:user:1
-- These stand in KEYS too, behind all that the script itself names, and their number is the last of ARGV:
-- both are taken off here, before the script looks at them.
--
-- A part's rule has what its algorithm needs: algo, span, setting, n, ms, decides. The state's `total` is
-- a list with a table per part: counter, last, total; and now.
--
-- After a step back of the clock a counter goes on from its newest event. Each part does so by itself
-- (clock_of), as one may have ended meanwhile, or not have been counted in. The whole has the present.
--
-- include: prelude

for _ = 1, number(#ARGV, 0) do KEYS[#KEYS] = nil end
ARGV[#ARGV] = nil

local mixed = {}
algorithms.mixed = mixed

-- more reads the parts: how many, and per part its algorithm, setting and span and how many windows it
-- has, of each its place among the rule's windows; then what the algorithm has besides.
function mixed.more(rule, i)
  rule.parts, rule.part_of, rule.place_of = {}, {}, {}
  local count = number(i, 1)
  i = i + 1
  for p = 1, count do
    local part = {algo = algorithms[ARGV[i]], setting = number(i + 1, 0), span = number(i + 2, 1),
                  n = number(i + 3, 0), decides = 0, ms = {}, lowest = nil}
    if not part.algo then error('unknown algorithm ' .. ARGV[i]) end
    for w = 1, part.n do
      local place = number(i + 3 + w, 1)
      part.ms[w], rule.part_of[place], rule.place_of[place] = rule.ms[place], p, w
      part.lowest = math.min(part.lowest or rule.lowest[place], rule.lowest[place])
    end
    i = i + 4 + part.n
    if part.algo.more then i = part.algo.more(part, i) end
    rule.parts[p] = part
  end
  return i
end

-- names_of gives the names of the parts.
local function names_of(counter)
  local head, forms, key = match(counter, '^([^{]*{%d+}:)([^:]*)(:.*)$')
  local names = {}
  for form in string.gmatch(forms, '[^+]+') do names[#names + 1] = head .. form .. key end
  return names
end

-- The bound is below the lowest threshold as far as the part is that is nearest to its own.
function mixed.open(counter, now, rule)
  local t, near, span, marked = {now = now}, nil, 1, nil
  for p, name in ipairs(names_of(counter)) do
    local part = rule.parts[p]
    if marks then marks[name] = nil end
    local part_last, total, bound = part.algo.open(name, now, part)
    t[p] = {counter = name, last = part_last, total = total}
    span = math.max(span, part.span)
    if part.n > 0 then near = math.max(near or bound - part.lowest, bound - part.lowest) end
    marked = marked or marks and marks[name]
  end
  if #t ~= #rule.parts then error('counter ' .. counter .. ' has ' .. #t .. ' forms, its rule ' .. #rule.parts) end
  if marked then marks[counter] = true end
  rule.span = span
  return 0, t, near and math.max(0, rule.lowest_threshold + near) or 0
end

-- clock_of gives the present of a part. What the calendar says is true by the server's clock.
local function clock_of(part, state, now)
  return part.algo == algorithms.calendar and now or math.max(state.last, now)
end

-- An event that comes too late for all windows of a part counts in the others alone. No units at all
-- write the mark: at the time of each part's newest event, or now, where that is asked for.
function mixed.add(counter, rule, last, t, ms, id, count)
  local mark_alone = count == '0'
  for p, part in ipairs(rule.parts) do
    local state = t[p]
    local now, at, at_id = clock_of(part, state, t.now), ms, id
    if marks then marks[state.counter] = marks[counter] end
    if mark_alone then
      at = ms < t.now and math.max(1, state.last) or now
    elseif ms == t.now and now > ms then
      at, at_id = now, nil
    end
    if mark_alone or at > now - part.span then
      state.last, state.total = part.algo.add(state.counter, part, state.last, state.total, at, at_id, count)
    end
  end
  return math.max(last, ms), t
end

-- part_at gives the state of part p, as its algorithm takes one.
local function part_at(s, p)
  s.parts = s.parts or {}
  local state, part = s.total[p], s.parts[p]
  if not part then
    part = {rule = s.rule.parts[p], counter = state.counter}
    s.parts[p] = part
  end
  part.last, part.total, part.now = state.last, state.total, clock_of(part.rule, state, s.now)
  return part
end

-- penalty gives the part that is the penalty, and its state; nil where the rule has none.
function mixed.penalty(s)
  for p, part in ipairs(s.rule.parts) do
    if part.algo == algorithms.penalty then return part, s.total[p] end
  end
end

function mixed.used(s, w)
  local p = s.rule.part_of[w]
  if not p then return 0 end -- of an in-flight window, which no part counts
  return s.rule.parts[p].algo.used(part_at(s, p), s.rule.place_of[w])
end

function mixed.free_at(s, w, n)
  local p = s.rule.part_of[w]
  local part = part_at(s, p)
  return s.now + part.rule.algo.free_at(part, s.rule.place_of[w], n) - part.now
end

function mixed.leaves(s, w, t, units, n)
  local p = s.rule.part_of[w]
  local part, leaves = part_at(s, p), s.rule.parts[p].algo.leaves
  if not leaves then return t + s.rule.ms[w] end
  return s.now + leaves(part, s.rule.place_of[w], t + part.now - s.now, units, n) - part.now
end

-- The oldest n units of the longest window: each part gives back those that it still holds.
function mixed.give_back(s, w, n)
  local held, taken = s.used[w], 0
  for p, rule in ipairs(s.rule.parts) do
    local part, longest = part_at(s, p), nil
    part.used = {[0] = 0}
    for i = 1, rule.n do
      part.used[i] = rule.algo.used(part, i)
      if not longest or rule.ms[i] > rule.ms[longest] then longest = i end
    end
    if s.rule.part_of[w] == p then longest = s.rule.place_of[w] end
    longest = longest or 0 -- it counts no window
    local units = math.min(part.used[longest], n - math.max(0, held - part.used[longest]))
    if units > 0 then
      units = rule.algo.give_back(part, longest, units)
      if s.rule.part_of[w] == p then taken = units end
    end
  end
  return taken
end
