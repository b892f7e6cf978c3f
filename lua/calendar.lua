-- calendar.lua: the units since the day, week, month or year began, exactly: one integer per
-- window. Where a period begins and ends is computed outside (windows/calendar.go), as it
-- takes time zones, and handed in; a script whose clock stands in none of the periods it was
-- given ends before it has written anything, and the caller asks again.
--
-- A counter is one string:
--   last[ id,from,to,units]...[!]
-- with `last` the newest event's ms, and per window which one it is, its period in ms, and the
-- units in it. An exclamation mark is that of reservations (prelude.lua).
--
-- A period that has not ended and overlaps the one given has other boundaries because a rule was changed, or
-- because another process has other time zones: its units stay. One that is later was begun before
-- the clock stepped back, and goes on.
--
-- The state's `total` is a list: from, to and units of the first window, of the second, and so on.
--
-- include: prelude

local calendar = {}
algorithms.calendar = calendar

local MOST_UNITS = 4503599627370496 -- 2^52, far above any limit
local LONGEST = 400 * DAY
local HOUR = 3600000 -- how much longer than its period a counter is kept

-- more reads what the rule has besides: per window its id, 0 for an in-flight one, and where its
-- period begins, which lasts for the window's ms.
function calendar.more(rule, i)
  rule.id, rule.from = {}, {}
  for w = 1, rule.n do
    rule.id[w], rule.from[w] = number(i, 0), number(i + 1, 0)
    i = i + 2
  end
  return i
end

-- read gives last and the periods of a counter, nil where the text is corrupt.
local function read(text, now)
  local last = #text <= 2048 and tonumber(match(text, '^%d+') or nil)
  if not last or last > now + DAY then return end
  local periods = {}
  for id, from, to, units in string.gmatch(text, ' (%d+),(%d+),(%d+),(%d+)') do
    if #id + #from + #to + #units > 64 then return end
    from, to, units = from + 0, to + 0, units + 0
    if from > now + DAY or to <= from or to - from > LONGEST or units > MOST_UNITS then return end
    periods[id] = {from, to, units}
  end
  return last, periods
end

function calendar.open(counter, now, rule)
  local text, last, known, bound, t = pcall('GET', counter), 0, {}, 0, {}
  if text then
    local periods
    if text.err then is_wrong_type(text) else last, periods = read(text, now) end
    if not periods then
      if not was_carried(counter) then corrupt_counters = corrupt_counters + 1 end
      last = 0
    elseif sub(text, -1) == '!' then
      marks = marks or {}
      marks[counter] = true
    end
    known = periods or known
  end
  local earliest = now
  for w = 1, rule.n do
    local from, units = rule.from[w], 0
    local to = from + rule.ms[w]
    if rule.id[w] > 0 then
      if now < from or now >= to then error('PERIOD ' .. int(now)) end
      local p = known[int(rule.id[w])]
      if p and p[2] > from and p[2] > now then
        units = p[3]
        if p[1] >= to then from, to = p[1], p[2] end
      end
      earliest, bound = math.min(earliest, rule.from[w]), math.max(bound, units)
    end
    t[3 * w - 2], t[3 * w - 1], t[3 * w] = from, to, units
  end
  rule.span = now - earliest + 1 -- what is older counts in no window
  return last, t, bound
end

local function write(counter, rule, newest, t)
  local text, longest = {int(newest)}, HOUR
  for w = 1, rule.n do
    if rule.id[w] > 0 then
      local from, to = t[3 * w - 2], t[3 * w - 1]
      text[#text + 1] = format(' %d,%d,%d,%d', rule.id[w], from, to, t[3 * w])
      longest = math.max(longest, to - math.max(newest, from) + HOUR) -- newest can be of before the period
    end
  end
  if marks and marks[counter] then text[#text + 1] = '!' end
  call('SET', counter, table.concat(text), 'PX', expiry(counter, longest))
end

-- An event of before a period does not count in it, however late it comes.
function calendar.add(counter, rule, last, t, ms, _, count)
  local newest = math.max(last, ms)
  for w = 1, rule.n do
    if ms >= t[3 * w - 2] then t[3 * w] = math.min(t[3 * w] + count, MOST_UNITS) end
  end
  write(counter, rule, newest, t)
  return newest, t
end

function calendar.used(s, w) return s.total[3 * w] end

function calendar.free_at(s, w) return s.total[3 * w - 1] end

-- How long the period after this one lasts is not known here.
function calendar.leaves(s, w, t) return math.max(t, s.total[3 * w - 1]) end

-- A shorter window gives back those of the oldest units that it still holds.
function calendar.give_back(s, longest, n)
  local t = s.total
  local held = t[3 * longest]
  for w = 1, s.rule.n do
    t[3 * w] = t[3 * w] - math.max(0, math.min(t[3 * w], n - math.max(0, held - t[3 * w])))
  end
  write(s.counter, s.rule, s.now, t)
  return held - t[3 * longest]
end
