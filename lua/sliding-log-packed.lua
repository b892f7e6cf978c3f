-- sliding-log-packed.lua: exact and weighted, one string per key. packed.lua has its form:
-- records of time and running total, so that the units in a window are a difference of two:
--   used(W) = total of the newest - total of the last record before the window
-- and one log serves any number of windows. A small log comes with one read; of a large
-- one the newest records do, and where a window begins takes one more (ring.lua).
-- The rule's setting is as in sliding-log.lua; a log is trimmed when it is full.
--
-- include: prelude, packed, ring

local rings -- the functions of ring.lua, once a run needs them

-- The state's `total` is the log, as packed.lua has it; false where the next write begins
-- a new one.
local function open_packed(counter, now, rule)
  local text = pcall('GETRANGE', counter, '0', FRONT)
  if text == '' then return 0, false, 0 end
  local log = (not text.err or not is_wrong_type(text)) and read_packed(counter, text)
  local last = log and ms_at(log, text, log.at + (log.n - 1) * RECORD)
  if not log or last > now + DAY or log.total > MOST then
    if was_carried(counter) then return 0, false, 0 end
    corrupt_counters = corrupt_counters + 1
    return 0, false, 0
  end
  if last <= now - rule.span then return last, false, 0 end
  return last, log, log.total
end

-- make_room writes a record where it has no place: what has left every window is cut off.
local function make_room(log, rule, n, ms, sum)
  log.n = n
  if log.size > 0 then
    rings = rings or open_rings()
    return rings.move(log, rule, ms, sum)
  end
  local text, at = text_of_log(log), log.at
  local aged = first_reaching(log, text, at, 0, n, ms_at, ms - rule.span + 1)
  if aged > 0 then
    local place = at + (aged - 1) * RECORD
    log.base, log.base_ms = total_at(log, text, place), ms_at(log, text, place)
  end
  log.total = math.min(sum, log.base + MOST)
  local records = sub(text, at + aged * RECORD, at + n * RECORD - 1)
  local newest = text_of_record(log.origin + log.total, ms)
  if n - aged < SMALL then return write_small(log, rule, records .. newest, n - aged + 1) end
  rings = rings or open_rings()
  rings.write(log, rule, records, n - aged, newest)
end

-- An event older than the newest record is put at that record's time, into it.
local function add_to_packed(counter, rule, last, log, ms, _, count)
  if ms < last then ms = last end
  if not log then
    log = {counter = counter, total = count + 0, base_ms = ms, base = 0, origin = 0}
    write_small(log, rule, text_of_record(log.total, ms), 1)
    return ms, log
  end
  local sum, n = log.total + count, log.n
  if ms == last then n = n - 1 end
  if n == log.places or sum - log.base > MOST then
    make_room(log, rule, n, ms, sum)
    if count == '0' then log.stale = MARK end
    return ms, log
  end
  call('SETRANGE', counter, int(log.at - 1 + n * RECORD), text_of_record(log.origin + sum, ms))
  log.n, log.total, log.stale = n + 1, sum, count ~= '0' or MARK
  local every, mark = rule.setting, marks and marks[counter] and true or false
  if mark ~= log.mark then
    local tag = log.size > 0 and 'P' or 'p'
    call('SETRANGE', counter, '0', mark and char(byte(tag) + 1) or tag)
    log.mark = mark
  end
  if mark or every == 0 or ms - ms % every ~= last - last % every then
    call('PEXPIRE', counter, expiry(counter, rule.span + rule.setting))
  end
  return ms, log
end

-- start_of gives where a window begins that has a record after `from`: the total before
-- its first record, the total with it, and its ms.
local function start_of(log, from, w)
  local text, at = text_of_log(log), log.at
  local first = ms_at(log, text, at)
  if first <= from then
    local i = first_reaching(log, text, at, 1, log.n, ms_at, from + 1)
    if log.starts then log.starts[w] = log.ring + i end
    local place = at + i * RECORD
    return {total_at(log, text, place - RECORD), total_at(log, text, place), ms_at(log, text, place)}
  end
  if log.ring == 0 then return {log.base, total_at(log, text, at), first} end
  rings = rings or open_rings()
  return rings.start(log, from, w)
end

-- s[w] is what window w was found to be; it holds while records are added at s.now.
local function used_of_packed(s, w)
  local log = s.total
  if not log then return 0 end
  local seen = s[w]
  if not seen then
    local from = s.now - s.rule.ms[w]
    seen = s.last > from and start_of(log, from, w) or {log.total}
    if seen[1] > log.total then seen[1] = log.base end -- foreign
    s[w] = seen
  end
  return log.total - seen[1]
end

-- ends_empty tells whether the newest record may be one of 0 units, a mark of reservations.
local function ends_empty(log)
  if log.stale == true then return false end
  if log.n < 2 then return log.ring > 0 end
  local text, place = text_of_log(log), log.at + (log.n - 1) * RECORD
  return sub(text, place, place + 5) == sub(text, place - RECORD, place - RECORD + 5) -- their totals
end

-- The window holds at most n units when the record whose total first reaches total - n has
-- left. It is mostly the first or the last.
local function packed_free_at(s, w, n)
  local ms = s.rule.ms[w]
  local log = s.total
  if n == 0 and not (log and ends_empty(log)) then return s.last + ms end
  used_of_packed(s, w)
  local seen = s[w]
  if not seen[3] then return s.last + ms end
  local least = log.total - n
  if seen[2] >= least then return seen[3] + ms end
  local text, at = text_of_log(log), log.at
  if log.ring > 0 and total_at(log, text, at) >= least then
    rings = rings or open_rings()
    return rings.reaching(log, least) + ms
  end
  local i = first_reaching(log, text, at, 0, log.n - 1, total_at, least)
  return ms_at(log, text, at + i * RECORD) + ms
end

-- Units that are given back are the oldest of window w. They pass to the last record before
-- it: the totals from that one on are raised, so windows up to w do not count them any more,
-- and a longer one (of a shadow rule) as long as that record.
local function give_back_of_packed(s, w, n)
  local log = s.total
  rings = rings or open_rings()
  return rings.give_back(log, s.now - s.rule.ms[w], s[w][1], n)
end

algorithms['sliding-log-packed'] = {
  open = open_packed, add = add_to_packed, used = used_of_packed, free_at = packed_free_at,
  give_back = give_back_of_packed,
}
