-- totals.lua: the arithmetic that the two logs share (sliding-log.lua,
-- sliding-log-zset.lua). Each entry carries its count and the running total
-- including it, so that the units in a window are a difference of two totals:
--   used(W) = newest.total - (first.total - first.count)
-- with `first` the first entry inside the window. Two look-ups whatever the
-- length, and one log serves any number of windows.
--
-- In the state of a log, `total` is the newest entry's. Where that has left the
-- longest window the total starts over, and state.total is below zero or zero:
-- minus the total of what lies behind. So a total also bounds what any window
-- holds, which spares most keys the second look-up in fold.
--
-- include: prelude

-- A log that never pauses does not start over, so its total steps back by ERA
-- long before 2^53. It stays at least ERA, more than windows hold (limits end at
-- 10^12), so an entry whose total is above the newest one's is of the time before.
local ERA, TOP = 2251799813685248, 4503599627370496 -- 2^51, 2^52

-- A log is trimmed in steps of at most TRIM entries, at the first entry in each
-- stretch of trim_every_ms (the rule's setting), and each time its total has grown by
-- half as much: a script stays short however many have aged, and they are removed twice
-- as fast as they came.
local TRIM = 10000

-- The state of a corrupt log is that of one that is to be unlinked.
local function discard(counter)
  if was_carried(counter) then return 0, -TRIM, 0 end
  corrupt_counters = corrupt_counters + 1
  return 0, -TRIM, 0
end

-- Units that are given back are the oldest of the longest window. The newest entry
-- then says up to which total units were given back (refunded_total), and until when that
-- matters: until those units would have left the longest window by themselves.
-- It holds for windows up to that one: a longer one, of a shadow rule, goes on counting
-- them, as it would lose what is older too.
-- refunds: counter -> {refunded_total, until, longest window}, where there is one.
local refunds, any_refund = {}, false

-- A newest entry of 0 units is a mark (of reservations, of a refund): what was used last left before it does.
-- empty_newest: counter -> true; nil while there is none in the run.
local empty_newest
local function note_newest(counter, count)
  empty_newest = empty_newest or {}
  empty_newest[counter] = count == '0' or nil
end

-- grow gives the total with count more units at ms, and whether that entry has the upkeep
-- to do (trim, renew the expiry) for itself and those that follow it.
local function grow(trim_every_ms, last, total, ms, count)
  local sum = (total > 0 and total or 0) + count
  local upkeep = total <= 0 or trim_every_ms == 0 or ms - ms % trim_every_ms ~= last - last % trim_every_ms
    or sum % (TRIM / 2) < sum - total
  -- Within a millisecond the order of entries on both sides of a step would be lost.
  if sum >= TOP and ms > last then sum = sum - ERA end
  return sum, upkeep
end

-- running_totals gives `used` and `free_at` over a log's one look-up:
--   look(counter, from)  the first entry from there on: its ms, count and total, and
--                        its place, beyond which to look for the next
local function running_totals(look)
  -- Foreign entries are skipped; where that does not
  -- end, the window holds all that the total says, as it cannot hold more.
  local function first_from(s, ms)
    local from = ms_text(ms)
    for _ = 1, 100 do
      local at, count, total, place = look(s.counter, from)
      if not at then break end
      if count and total and count >= 0 and count <= total and total < 2 * TOP then
        while total > s.total do total = total - ERA end
        return at, count, total
      end
      from = '(' .. place
    end
    return s.last, s.total, s.total
  end

  -- s[w] is what window w was found to be: the total before its first entry,
  -- the total with it, and its ms (nil where it was empty and the next entry will
  -- be the first). It holds while entries are added at s.now.
  local function used(s, w)
    if s.total <= 0 then return 0 end
    local seen = s[w]
    if not seen then
      local from = s.now - s.rule.ms[w]
      if s.last <= from then
        seen = {s.total, s.total}
      else
        local at, count, total = first_from(s, from + 1)
        seen = {total - count, total, at}
        local refund = any_refund and refunds[s.counter]
        if refund and s.rule.ms[w] <= refund[3] then
          local refunded_total = refund[1]
          while refunded_total > s.total do refunded_total = refunded_total - ERA end
          if refunded_total > seen[1] then seen[1] = refunded_total end
        end
      end
      s[w] = seen
    elseif seen[1] > s.total then -- it has stepped back since
      seen[1], seen[2], seen[4] = seen[1] - ERA, seen[2] - ERA, nil
    end
    return s.total - seen[1]
  end

  -- The window holds at most n units when the entry whose total first reaches
  -- total - n has left. It is mostly the first or the last. Else it is found by
  -- narrowing on time, each probe one look-up, in turn by interpolation (a
  -- steady key takes two or three) and by halves.
  local function free_at(s, w, n)
    if n == 0 and not (empty_newest and empty_newest[s.counter]) then return s.last + s.rule.ms[w] end
    used(s, w)
    local need, seen, ms = s.total - n, s[w], s.rule.ms[w]
    if not seen[3] then return s.last + ms end
    if seen[2] >= need then return seen[3] + ms end
    if seen[4] == need then return seen[5] end
    local low_ms, low_total, high_ms, high_total = seen[3], seen[2], s.last, s.total
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
      local at, count, total = first_from(s, probe)
      if total < need then
        low_ms, low_total = at, total
      elseif total - count < need then
        seen[4], seen[5] = need, at + ms
        return at + ms
      else
        high_ms, high_total = probe - 1, total - count
      end
    end
    seen[4], seen[5] = need, low_ms + ms
    return low_ms + ms
  end
  return used, free_at
end
