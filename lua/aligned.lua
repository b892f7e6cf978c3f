-- aligned.lua: what sliding-counter.lua and fixed-window.lua share. Windows are
-- aligned: they begin at multiples of their length since 1970. A counter is one string:
--   last[ ms,current,previous]...
-- with `last` the newest event's ms, and per window of the rule the units of the
-- one that holds `last` and of the one before. So the text alone says which
-- windows it speaks of, and a window that the rule has got since reads as empty.
--
-- The state's `total` is a list: current and previous of the first window, of
-- the second, and so on.

local MOST = 4503599627370496 -- 2^52: counts stay there, far above any limit

local function read_aligned(counter, now, rule)
  local text, t = pcall('GET', counter), {}
  for i = 1, 2 * rule.n do t[i] = 0 end
  if not text then return 0, t, 0 end
  local last = not text.err and #text <= 512 and tonumber(match(text, '^%d+') or nil) -- ours take up to 400 bytes
  if not last or last > now + DAY then
    if text.err then foreign(text) end
    unreadable = unreadable + 1
    return 0, t, 0
  end
  local bound = 0
  for ms, current, previous in string.gmatch(text, ' (%d+),(%d+),(%d+)') do
    for w = 1, rule.n do
      if rule.ms[w] == ms + 0 then
        current, previous = math.min(current + 0, MOST), math.min(previous + 0, MOST)
        t[2 * w - 1], t[2 * w] = current, previous
        bound = math.max(bound, current + previous)
      end
    end
  end
  return last, t, bound
end

-- aligned_at gives window w as of `now`: where it begins, its units, and those of the one before.
local function aligned_at(rule, w, last, t, now)
  local ms = rule.ms[w]
  local start = now - now % ms
  local behind = (start - (last - last % ms)) / ms
  if behind == 0 then return start, t[2 * w - 1], t[2 * w] end
  if behind == 1 then return start, 0, t[2 * w - 1] end
  return start, 0, 0
end

-- add_aligned counts an event in the window of its own time: one that comes late
-- in the one before, or in none. It keeps the text for `spans` of the longest window.
local function add_aligned(counter, rule, last, t, ms, count, spans)
  count = count + 0
  local newest = math.max(last, ms)
  local text, out = {int(newest)}, {}
  for w = 1, rule.n do
    local win = rule.ms[w]
    local start, current, previous = aligned_at(rule, w, last, t, newest)
    if ms >= start then
      current = math.min(current + count, MOST)
    elseif ms >= start - win then
      previous = math.min(previous + count, MOST)
    end
    out[2 * w - 1], out[2 * w] = current, previous
    text[w + 1] = format(' %d,%d,%d', win, current, previous)
  end
  call('SET', counter, table.concat(text), 'PX', int(math.max(LEAST, spans * rule.span)))
  return newest, out
end

-- give_back_aligned takes n units out of window w, from the window before first.
local function give_back_aligned(s, w, n, spans)
  local _, current, previous = aligned_at(s.rule, w, s.last, s.total, s.now)
  local from_previous = spans > 1 and math.min(previous, n) or 0
  local from_current = math.min(current, n - from_previous)
  -- As of now, so that nothing is taken out of a window that is over.
  local t = {}
  for i = 1, s.rule.n do
    local _, c, p = aligned_at(s.rule, i, s.last, s.total, s.now)
    t[2 * i - 1], t[2 * i] = c, p
  end
  t[2 * w - 1], t[2 * w] = current - from_current, previous - from_previous
  add_aligned(s.counter, s.rule, s.now, t, s.now, 0, spans)
  return from_previous + from_current
end
