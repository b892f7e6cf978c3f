-- reserved.lua: reserved units of a key count as used until their reservation is settled. Here they are added to
-- what the key's meters hold.
--
-- Each meter of such a key is marked, and the number of reserved units is in one field of the hash of levels. So a key
-- without reservations pays nothing:
--   "\n\n" and the key -> units;first;till;c|f
--   first, till  when the first and the last of the reservations expire, in ms
--   c|f          what happens to the units then: c, they are charged; f, they are free. If the reservations differ, it
--                is c, and `units` begins with a zero (older processes, which know only one policy, count the units)
--
-- include: library, plan, state

-- read_reserved returns what is reserved of a key, nil if nothing is: units, first, till, policy; frees and charges,
-- whether any units will be free and whether any will be charged; and rest, for how many more ms units are reserved.
local function read_reserved(levels, key, now)
  local text = call('HGET', levels, '\n\n' .. key)
  if not text or #text > 64 then return end
  local zero, units, first, till, policy = match(text, '^(0?)(%d+);(%d+);(%d+);([cf])$')
  units, first, till = tonumber(units or nil), tonumber(first or nil), tonumber(till or nil)
  if not units or units < 1 or units >= 4503599627370496 or till > now + 2 * DAY then return end
  if zero == '0' then policy = 'm' end
  return {units = units, first = first, till = till, policy = policy, frees = policy ~= 'c', charges = policy ~= 'f',
          rest = max(0, till - now)}
end

-- hold sets r as what is reserved of a key; nil: nothing. The next write sets the mark of its meters, or removes it.
local function hold(s, r)
  s.reserved, s.more = r or false, r and r.units or 0
  for i = 1, s.plan.many do
    local m = s.meters[i]
    m.marked, m.rest = r and true or false, r and r.rest or 0
  end
end

function hooks.marked(s, now)
  local r = read_reserved(KEYS[s.place], user_key(KEYS[s.k]), now)
  -- Perhaps no process settles expired reservations. If their units had been charged when they expired, and would have
  -- left the windows by now, they do not count.
  if r then
    local span = 0
    for i = 1, s.plan.many do span = max(span, s.meters[i].span) end
    if r.till + (r.charges and span or 0) <= now then r = nil end
  end
  hold(s, r)
end

-- settled_by returns t, the time at which a reservation ends. If it has ended and is not settled yet, settled_by
-- returns a later time: as long after now as t is before now, at least 1 ms and at most 1 s. A worker settles it
-- within a few ms, but perhaps no worker runs.
local function settled_by(s, t)
  return t > s.now and t or s.now + max(1, min(1000, s.now - t))
end

function hooks.free_at(s, w, n)
  local r = s.reserved
  local left = n > 0 and r.first or r.till
  if s.plan.in_flight[w] then return settled_by(s, left) end
  local still = n >= r.units and charged_free_at(s, w, n - r.units) -- with all reserved units in the window
  if still and not r.frees then
    -- Units that are charged when they expire may leave earlier: they fade together with the units charged before.
    local fades = still > left and s.meters[s.plan.meter_of[w]].meter.leaves
    return fades and min(still, charged_leaves(s, w, max(left, s.now), r.units, n)) or still
  end
  if n > 0 and r.frees then
    if charged_in(s, w) > n then left = max(left, charged_free_at(s, w, n)) end
  else
    if r.charges then left = charged_leaves(s, w, left, r.units, n) end
    if n == 0 and charged_in(s, w) > 0 then left = max(left, charged_free_at(s, w, 0)) end
  end
  left = settled_by(s, left)
  return still and min(still, left) or left
end

-- mark writes the mark of a key's meters, or removes it, and charges nothing. With at_present it writes at the present
-- time, so that no window ends before that time if the clock steps back. Otherwise it writes at the newest event's
-- time.
local function mark(s, at_present)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    m.meter.add(m, at_present and m.now or max(1, m.last), nil, '0')
  end
end
