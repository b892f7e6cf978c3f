-- totals.lua: the arithmetic that the two logs share (sliding-log.lua,
-- sliding-log-zset.lua). Each entry carries its count and the running total
-- including it, so that the units in a window are a difference of two totals:
--   used(W) = newest.total - (first.total - first.count)
-- with `first` the first entry inside the window. Two look-ups whatever the
-- length, and one log serves any number of windows.
--
-- In the state of a log, `total` is the newest entry's. Where that has left the
-- longest window the total starts over, and it is below zero or zero:
-- minus the total of what lies behind. So a total also bounds what any window
-- holds, which spares most keys the second look-up in fold.
--
-- include: library, plan, state

-- A log that never pauses does not start over, so its total steps back by ERA
-- long before 2^53. It stays at least ERA, more than windows hold (limits end at
-- 10^12), so an entry whose total is above the newest one's is of the time before.
local ERA, TOP, ABOVE_TOP = 2251799813685248, 4503599627370496, 6755399441055744 -- 2^51, 2^52, the sum

-- A log is trimmed in steps of at most TRIM entries, at the first entry in each
-- stretch of trim_every_ms (the meter's setting), and each time its total has grown by
-- half as much: a call stays short however many have aged, and they are removed twice
-- as fast as they came.
local TRIM = 10000

-- open_totals sets what a log's state has besides:
--   refund  {refunded_total, until, longest window}: units that are given back are the oldest of the longest window.
--           The newest entry then says up to which total units were given back, and until when that matters: until
--           those units would have left the longest window by themselves. It holds for windows up to that one: a
--           longer one, of a shadow rule, goes on counting them, as it would lose what is older too
--   empty   the newest entry has 0 units and is a mark (of holds, of a refund): what was used last left before it does
--   before, with, first    per window, once it was looked at: the total before its first entry, the total with it,
--           and its ms (nil where the window was empty and the next entry will be the first)
--   need, need_at          per window: the total that was looked for last, and when it leaves
-- It gives the largest number of units that a window may hold.
local function open_totals(m, last, total, now)
  m.last, m.refund, m.empty = last, false, false
  if last <= now - m.span then -- it has left the longest window
    m.total = -total
    return 0
  end
  m.total = total
  return total
end

-- The state of a corrupt log is that of one that is to be unlinked.
local function discard(m)
  corrupt_counters = corrupt_counters + 1
  open_totals(m, 0, 0, 0)
  m.total = -TRIM
  return 0
end

-- grow gives the total with count more units at ms, and whether that entry has the upkeep
-- to do (trim, renew the expiry) for itself and those that follow it.
local function grow(m, ms, count)
  local trim_every_ms, last, total = m.meter.setting, m.last, m.total
  local sum = (total > 0 and total or 0) + count
  local upkeep = total <= 0 or trim_every_ms == 0 or ms - ms % trim_every_ms ~= last - last % trim_every_ms
    or sum % (TRIM / 2) < sum - total
  -- Within a millisecond the order of entries on both sides of a step would be lost.
  if sum >= TOP and ms > last then sum = sum - ERA end
  return sum, upkeep
end

-- running_totals gives `look`, `used`, `free_at` and `free_times` over a log's one look-up:
--   look_up(name, from)  the first entry from there on: its ms, count and total, and
--                        its place, beyond which to look for the next
local function running_totals(look_up)
  -- first_from gives the first entry from a time on: its ms, count and total. Foreign entries are skipped; where that
  -- does not end, the window holds all that the total says, as it cannot hold more.
  local function first_from(m, ms)
    local from, all, tries = ms_text(ms), m.total, 100
    repeat
      local at, count, total, place = look_up(m.name, from)
      if not at then break end
      if count and total and count >= 0 and count <= total and total < 2 * TOP then
        while total > all do total = total - ERA end
        return at, count, total
      end
      from, tries = '(' .. place, tries - 1
    until tries == 0
    return m.last, all, all
  end

  -- look finds the first entry of each window. If the first entry of a longer window lies in a shorter window, it is
  -- the first entry of that window too. The result stays valid while entries are added at m.now.
  local function look(m, used, more)
    local meter, all, now, last, refund, at, count, total = m.meter, m.total, m.now, m.last, m.refund, nil, nil, nil
    if all < 0 then all = 0 end -- it starts over: what is added next is the first of each window
    for w = 1, meter.n do
      local ms = meter.ms[w]
      local from, before, with, first = now - ms, all, all, nil
      if last > from and all > 0 then
        if not at or at <= from then at, count, total = first_from(m, from + 1) end
        before, with, first = total - count, total, at
        if refund and ms <= refund[3] then
          local refunded_total = refund[1]
          while refunded_total > all do refunded_total = refunded_total - ERA end
          if refunded_total > before then before = refunded_total end
        end
      end
      m.before[w], m.with[w], m.first[w], m.need[w] = before, with, first, nil
      used[meter.windows[w]] = all - before + more
    end
  end

  local function used(m, w)
    local all, before = m.total, m.before[w]
    if all <= 0 then return 0 end
    if before > all then -- it has stepped back since
      before = before - ERA
      m.before[w], m.with[w], m.need[w] = before, m.with[w] - ERA, nil
    end
    return all - before
  end

  -- The window holds at most n units when the entry whose total first reaches
  -- total - n has left. It is mostly the first or the last. Else it is found by
  -- narrowing on time, each probe one look-up, in turn by interpolation (a
  -- steady key takes two or three) and by halves.
  local function free_at(m, w, n)
    local ms = m.meter.ms[w]
    if n == 0 and not m.empty then return m.last + ms end
    used(m, w)
    local need, first = m.total - n, m.first[w]
    if not first then return m.last + ms end
    if m.with[w] >= need then return first + ms end
    if m.need[w] == need then return m.need_at[w] end
    local low_ms, low_total, high_ms, high_total = first, m.with[w], m.last, m.total
    local halve = false
    while low_ms < high_ms do
      local probe
      if halve then
        probe = floor((low_ms + high_ms + 1) / 2)
      else
        probe = low_ms + math.ceil((high_ms - low_ms) * (need - low_total) / (high_total - low_total))
        if probe <= low_ms then probe = low_ms + 1 end
        if probe > high_ms then probe = high_ms end
      end
      halve = n == 0 or not halve -- behind the entry looked for are marks, where it is not the last
      local at, count, total = first_from(m, probe)
      if total < need then
        low_ms, low_total = at, total
      elseif total - count < need then
        low_ms = at
        break
      else
        high_ms, high_total = probe - 1, total - count
      end
    end
    m.need[w], m.need_at[w] = need, low_ms + ms
    return low_ms + ms
  end
  local function free_times(m, w, all)
    local ms, first = m.meter.ms[w], m.first[w]
    if m.empty or first and m.with[w] <= m.before[w] then -- marks, or what was given back
      return free_at(m, w, all - 1), free_at(m, w, 0)
    end
    return (first or m.last) + ms, m.last + ms
  end
  return look, used, free_at, free_times
end
