-- calendar.lua: the exact number of units since the day, week, month or year began: one integer per window. The caller
-- computes where a period begins and ends, because this needs time zones (windows/calendar.go). If the clock is not in
-- a period, the call ends before it writes anything (refusal in library.lua), and the caller sends it again.
--
-- A meter is one string:
--   last[ id,from,to,units]...[!]
-- with `last` the newest unit's ms, and per window its id (unit of the calendar * 2^32 + a hash of zone and start),
-- its period in ms, and the units in it. An exclamation mark is the mark of holds (reserved.lua).
--
-- Windows that the plan does not have, because the rules of the key were changed, are counted until their period ends.
-- A window that the meter does not have begins with the units of another one of its unit, if `last` is in its period.
-- A stored period that is later than the given one was begun before the clock stepped back, and continues.
--
-- The state's `total` is a list of windows, each {id, from, to, units}: first those of the plan.
--
-- include: library, plan, state

local calendar = {by_clock = true} -- even if the clock stepped back
algorithms.calendar = calendar

local FROM, TO, UNITS = 2, 3, 4
local MOST_UNITS = 4503599627370496 -- 2^52, far above any limit

-- more reads the fields that only windows in periods have: id, which calendar window it is, from, where
-- the period begins, and next, how long the next one lasts. The period lasts for the window's ms.
function calendar.more(meter, given, _, _, windows)
  meter.id, meter.from, meter.next = {}, {}, {}
  for p, w in ipairs(given.windows or {}) do
    for _, name in ipairs({'id', 'from', 'next'}) do meter[name][p] = integer(windows[w][name], 1, name) end
  end
end

-- read returns last and the windows of a meter by their ids as text (see parse_windows), nil if the text is corrupt.
local function read(text, now)
  if not text then return 0, {} end
  local last = not (text.err and is_wrong_type(text)) and #text <= 2048 and tonumber(match(text, '^%d+') or nil)
  if not last or last > now + DAY then return end
  local known = {}
  for id, from, to, units in string.gmatch(text, ' (%d+),(%d+),(%d+),(%d+)') do
    if #id + #from + #to + #units > 64 then return end
    from, to, units = from + 0, to + 0, units + 0
    if from > now + DAY or to <= from or to - from > 400 * DAY or units > MOST_UNITS then return end
    known[id] = {id + 0, from, to, units}
  end
  return last, known, sub(text, -1) == '!'
end

-- begin returns how many of the known units a window that is not known begins with.
local function begin(known, last, id, from)
  local units = 0
  for _, p in pairs(known) do
    if floor(p[1] / 4294967296) == floor(id / 4294967296) and p[TO] > from and last >= from then
      units = max(units, p[UNITS])
    end
  end
  return units
end

function calendar.open(m, name, now)
  local meter, bound, earliest, t, planned = m.meter, 0, now, {}, {}
  local last, known, marked = read(pcall('GET', name), now)
  if not known then
    corrupt_counters[#corrupt_counters + 1] = name
    last, known = 0, {}
  end
  if marked then m.marked = true end
  for w = 1, meter.n do
    local id, from = meter.id[w], meter.from[w]
    local to, p = from + meter.ms[w], known[int(id)]
    if now < from or now >= to then refusal = {err = 'PERIOD ' .. int(now)} end
    if not p or p[FROM] ~= from and p[FROM] < to then p = {id, from, to, begin(known, last, id, from)} end
    t[w] = {unpack(p)} -- another window may have the same id
    earliest, bound, planned[int(id)] = min(earliest, from), max(bound, t[w][UNITS]), true
  end
  for id, p in pairs(known) do
    if not planned[id] and p[TO] > now and #t < meter.n + 8 then t[#t + 1] = p end
  end
  m.span = now - earliest + 1 -- an older event counts in no window
  m.last, m.total = last, t
  return bound
end

function calendar.lasts(m)
  local to = 0
  for _, p in ipairs(m.total) do to = max(to, p[TO]) end
  return to - m.now + 3600000 -- an hour longer than its periods
end

-- No newest time is before a period with units: it may be the time of a late event, or of a clock that stepped back.
local function write(m, newest)
  local text = ''
  for _, p in ipairs(m.total) do
    if p[UNITS] > 0 then newest = max(newest, p[FROM]) end
    text = text .. format(' %d,%d,%d,%d', unpack(p))
  end
  if m.marked then text = text .. '!' end
  call('SET', m.name, int(newest) .. text, 'PX', expiry(m, calendar.lasts(m)))
  m.last = newest
end

-- An event from before a period does not count in it, however late it comes. An event of now counts in the period that
-- continues, even if the clock stepped back to before that period.
function calendar.add(m, ms, _, count)
  for _, p in ipairs(m.total) do
    if ms >= min(m.now, p[FROM]) then p[UNITS] = min(p[UNITS] + count, MOST_UNITS) end
  end
  write(m, max(m.last, ms))
end

function calendar.used(m, w) return m.total[w][UNITS] end

function calendar.free_at(m, w) return m.total[w][TO] end

-- All later periods are taken to be as long as the next one. Units of an earlier period have left.
function calendar.leaves(m, w, t)
  if t < min(m.now, m.total[w][FROM]) then return t end
  local to, next = m.total[w][TO], m.meter.next[w]
  return t < to and to or to + next * (floor((t - to) / next) + 1)
end

-- From a shorter window it removes those of the oldest units that the window still holds.
function calendar.give_back(m, longest, n)
  local held = m.total[longest][UNITS]
  for _, p in ipairs(m.total) do p[UNITS] = p[UNITS] - max(0, min(p[UNITS], n - max(0, held - p[UNITS]))) end
  write(m, m.now)
  return held - m.total[longest][UNITS]
end
