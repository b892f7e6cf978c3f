-- totals.lua: the arithmetic that the two logs share (sliding-log.lua, sliding-log-zset.lua). Each entry carries its
-- count and the running total including it, so that the units in a window are a difference of two totals:
--   used(W) = newest.total - (first.total - first.count)
-- with `first` the first entry inside the window. This takes two look-ups whatever the length of the log, and one log
-- serves any number of windows.
--
-- In the state of a log, `total` is the total of the newest entry. No window holds more, so most keys do not need the
-- second look-up in fold. If the newest entry has left the longest window, the log starts over: `total` is minus the
-- total of the old entries. If that is above TRIM, the log goes on, so that no call removes too many entries at once.
--
-- include: library, plan, state

-- A log that never pauses does not start over, so its total is reduced by ERA long before it reaches 2^53. It is
-- still at least ERA then, which is more than a window holds (the largest limit is 10^12). So an entry whose total
-- is above the newest entry's total was written before the reduction.
local ERA, TOP, ABOVE_TOP = 2251799813685248, 4503599627370496, 6755399441055744 -- 2^51, 2^52, the sum

-- A log is trimmed in steps of at most TRIM entries, so that a call stays short: at the first entry in each interval
-- of trim_every_ms (the meter's setting), and each time its total has grown by TRIM / 2. So old entries become fewer.
local TRIM = 10000

-- open_totals sets the fields that only a log's state has:
--   refund  {refunded_total, until, longest window}: units that are given back are the oldest of the longest window.
--           The newest entry then says up to which total units were given back, and until when that matters: until
--           those units would have left the longest window anyway. It applies to windows up to that length. A longer
--           window, of a shadow rule, still counts the units: otherwise it would lose older units too
--   empty   the newest entry has 0 units and is only a mark (of holds, of a refund). The last used units leave before
--           this entry does
--   before, with, first    per window, after look: the total before its first entry, the total with that entry, and
--           the entry's ms (nil if the window was empty; then the next entry is its first)
--   need, need_at          per window: the total that was searched for last, and when it leaves
-- It returns the largest number of units that a window may hold.
local function open_totals(m, last, total, now)
  m.last, m.refund, m.empty = last, false, false
  local aged = last <= now - m.span -- it has left the longest window
  m.total = aged and total <= TRIM and -total or total
  return aged and 0 or total
end

-- discard gives a corrupt log the state of a log that the next write unlinks.
local function discard(m)
  corrupt_counters[#corrupt_counters + 1] = m.name
  open_totals(m, 0, 0, 0)
  m.total = -TOP
  return 0
end

-- grow returns the total with count more units at ms, and whether that entry must do the
-- upkeep (trim, renew the expiry) for itself and the entries that follow it.
local function grow(m, ms, count)
  local trim_every_ms, last, total = m.meter.setting, m.last, m.total
  local sum = (total > 0 and total or 0) + count
  local upkeep = total <= 0 or trim_every_ms == 0 or ms - ms % trim_every_ms ~= last - last % trim_every_ms
    or sum % (TRIM / 2) < sum - total
  -- Not within one millisecond: the entries before and after the reduction would lose their order.
  if sum >= TOP and ms > last then sum = sum - ERA end
  return sum, upkeep
end

-- running_totals returns `look`, `used`, `free_at` and `free_times`, which need one function of a log:
--   look_up(name, from)  returns the first entry from there on: its ms, count and total, and
--                        its place; the next entry is looked for after that place
local function running_totals(look_up)
  -- first_from returns the first entry from a time on: its ms, count and total. Foreign entries are skipped. If it
  -- finds no entry in 100 tries, the window is taken to hold the whole total, because it cannot hold more.
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
    if all < 0 then all = 0 end -- the log starts over: the next entry is the first of each window
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
    if before > all then -- the total was reduced by ERA since
      before = before - ERA
      m.before[w], m.with[w], m.need[w] = before, m.with[w] - ERA, nil
    end
    return all - before
  end

  -- The window holds at most n units when the first entry whose total reaches total - n has left. It is mostly the
  -- first or the last entry. Otherwise it is found by a search on time. Each probe is one look-up. Probes are
  -- chosen in turn by interpolation (a steady key takes two or three) and by halving.
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
      halve = n == 0 or not halve -- with n == 0, only marks follow the entry that is searched for
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
    if m.empty or first and m.with[w] <= m.before[w] then -- marks, or units that were given back
      return free_at(m, w, all - 1), free_at(m, w, 0)
    end
    return (first or m.last) + ms, m.last + ms
  end
  return look, used, free_at, free_times
end
