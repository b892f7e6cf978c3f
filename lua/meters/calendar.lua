-- calendar.lua: the exact number of units since the day, week, month or year began: one integer
-- per window. The caller computes where a period begins and ends, because this needs time zones
-- (windows/calendar.go). If the clock is outside of a period that the caller gave, the call ends
-- before it writes anything (refusal in library.lua), and the caller sends it again.
--
-- A meter is one string:
--   last[ id,from,to,units]...[!]
-- with `last` the newest event's ms, and per window its id, its period in ms, and the
-- units in it. An exclamation mark is the mark of holds (reserved.lua).
--
-- A stored period that has not ended and overlaps the given one has other boundaries because a rule was
-- changed, or because another process has other time zones: its units are kept. A stored period that is
-- later than the given one was begun before the clock stepped back, and continues.
--
-- The state's `total` is a list: from, to and units of the first window, of the second, and so on.
--
-- include: library, plan, state

-- Periods are compared with the clock, even if the clock stepped back.
local calendar = {by_clock = true}
algorithms.calendar = calendar

local MOST_UNITS = 4503599627370496 -- 2^52, far above any limit
local LONGEST = 400 * DAY
local HOUR = 3600000 -- how much longer than its period a meter is kept

-- more reads the fields that only windows in periods have: id, which calendar window it is, and from, where
-- the period begins. The period lasts for the window's ms.
function calendar.more(meter, told, _, _, windows)
  meter.id, meter.from = {}, {}
  for p, w in ipairs(told.windows or {}) do
    meter.id[p], meter.from[p] = integer(windows[w].id, 1, 'id'), integer(windows[w].from, 0, 'from')
  end
end

-- read returns last and the periods of a meter, nil if the text is corrupt.
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

function calendar.open(m, name, now)
  local text, meter, last, known, bound, t = pcall('GET', name), m.meter, 0, {}, 0, {}
  if text then
    local periods
    if text.err then is_wrong_type(text) else last, periods = read(text, now) end
    if not periods then
      corrupt_counters = corrupt_counters + 1
      last = 0
    elseif sub(text, -1) == '!' then
      m.marked = true
    end
    known = periods or known
  end
  local earliest = now
  for w = 1, meter.n do
    local from, units = meter.from[w], 0
    local to = from + meter.ms[w]
    if now < from or now >= to then refusal = {err = 'PERIOD ' .. int(now)} end
    local p = known[int(meter.id[w])]
    if p and p[2] > from and p[2] > now then
      units = p[3]
      if p[1] >= to then from, to = p[1], p[2] end
    end
    earliest, bound = min(earliest, meter.from[w]), max(bound, units)
    t[3 * w - 2], t[3 * w - 1], t[3 * w] = from, to, units
  end
  m.span = now - earliest + 1 -- an older event counts in no window
  m.last, m.total = last, t
  return bound
end

local function write(m, newest)
  local text, longest, t = {int(newest)}, HOUR, m.total
  for w = 1, m.meter.n do
    local from, to = t[3 * w - 2], t[3 * w - 1]
    text[#text + 1] = format(' %d,%d,%d,%d', m.meter.id[w], from, to, t[3 * w])
    longest = max(longest, to - max(newest, from) + HOUR) -- newest can be before the period
  end
  if m.marked then text[#text + 1] = '!' end
  call('SET', m.name, table.concat(text), 'PX', expiry(m, longest))
  m.last = newest
end

-- An event from before a period does not count in it, however late it comes. An event of now counts in the period that
-- continues, even if the clock stepped back to before that period.
function calendar.add(m, ms, _, count)
  local t = m.total
  for w = 1, m.meter.n do
    if ms >= min(m.now, t[3 * w - 2]) then t[3 * w] = min(t[3 * w] + count, MOST_UNITS) end
  end
  write(m, max(m.last, ms))
end

function calendar.used(m, w) return m.total[3 * w] end

function calendar.free_at(m, w) return m.total[3 * w - 1] end

-- The length of the next period is not known here.
function calendar.leaves(m, w, t) return max(t, m.total[3 * w - 1]) end

-- From a shorter window it removes those of the oldest units that the window still holds.
function calendar.give_back(m, longest, n)
  local t = m.total
  local held = t[3 * longest]
  for w = 1, m.meter.n do
    t[3 * w] = t[3 * w] - max(0, min(t[3 * w], n - max(0, held - t[3 * w])))
  end
  write(m, m.now)
  return held - t[3 * longest]
end
