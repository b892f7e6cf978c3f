-- aligned.lua: what sliding-counter.lua and fixed-window.lua share. Windows are
-- aligned: they begin at multiples of their length since 1970. A meter is one string:
--   last[ ms,current,previous]...[!]
-- with `last` the newest event's ms, and per window length the units of the
-- window that holds `last` and of the window before it. So the text itself says
-- which windows it has, and a window that was added to the rule later reads as empty.
--
-- An exclamation mark is the mark of holds (reserved.lua).
--
-- The state's `total` is a list: current and previous of the first window, of the second, and so on.
--
-- include: library, plan, state

local byte = string.byte
local MOST = 4503599627370496 -- 2^52: counts stay there, far above any limit
local LONG_NUMBER = string.rep('%d', 17) -- more digits than any number written here has

local function open_aligned(m, name, now)
  local text, t, meter = pcall('GET', name), {}, m.meter
  for i = 1, 2 * meter.n do t[i] = 0 end
  m.last, m.total = 0, t
  if not text then return 0 end
  -- A value that this file writes has up to 3.4 KB.
  local plausible = not text.err and #text <= 4096 and not find(text, LONG_NUMBER)
  local last = plausible and tonumber(match(text, '^%d+') or nil)
  if not last or last > now + DAY then
    if text.err then is_wrong_type(text) end
    corrupt_counters[#corrupt_counters + 1] = name
    return 0
  end
  m.last = last
  if byte(text, -1) == 33 then m.marked = true end
  local bound = 0
  for ms, current, previous in string.gmatch(text, ' (%d+),(%d+),(%d+)') do
    for w = 1, meter.n do
      if meter.ms[w] == ms + 0 then
        current, previous = min(current + 0, MOST), min(previous + 0, MOST)
        t[2 * w - 1], t[2 * w] = current, previous
        bound = max(bound, current + previous)
      end
    end
  end
  return bound
end

-- aligned_at returns window w as of `now`: where it begins, its units, and the units of the window before it.
local function aligned_at(m, w, now)
  local ms, t, last = m.meter.ms[w], m.total, m.last
  local start = now - now % ms
  local behind = (start - (last - last % ms)) / ms
  if behind == 0 then return start, t[2 * w - 1], t[2 * w] end
  if behind == 1 then return start, 0, t[2 * w - 1] end
  return start, 0, 0
end

-- add_aligned counts an event in the window of its own time: a late event counts in
-- the window before, or in none. The text expires after `spans` times the longest window.
local function add_aligned(m, ms, count, spans)
  count = count + 0
  local newest = max(m.last, ms)
  local text, out = {int(newest)}, {}
  for w = 1, m.meter.n do
    local win = m.meter.ms[w]
    local start, current, previous = aligned_at(m, w, newest)
    if ms >= start then
      current = min(current + count, MOST)
    elseif ms >= start - win then
      previous = min(previous + count, MOST)
    end
    out[2 * w - 1], out[2 * w] = current, previous
    text[w + 1] = format(' %d,%d,%d', win, current, previous)
  end
  if m.marked then text[#text + 1] = '!' end
  call('SET', m.name, table.concat(text), 'PX', expiry(m, spans * m.span))
  m.last, m.total = newest, out
end

-- give_back_aligned removes the oldest n units from window `longest`, and from each other window those of the units
-- that it still holds. It removes units of the previous window first. It returns how many it removed from `longest`.
local function give_back_aligned(m, longest, n, spans)
  local t, held = {}, {}
  for w = 1, m.meter.n do -- as of now, so that nothing is taken out of a window that is over
    local _, current, previous = aligned_at(m, w, m.now)
    t[2 * w - 1], t[2 * w] = current, previous
    held[w] = current + (spans > 1 and previous or 0)
  end
  local taken = 0
  for w = 1, m.meter.n do
    local take = min(held[w], n - max(0, held[longest] - held[w]))
    if take > 0 then
      local from_previous = spans > 1 and min(t[2 * w], take) or 0
      t[2 * w - 1], t[2 * w] = t[2 * w - 1] - (take - from_previous), t[2 * w] - from_previous
      if w == longest then taken = take end
    end
  end
  m.last, m.total = m.now, t
  add_aligned(m, m.now, 0, spans)
  return taken
end
