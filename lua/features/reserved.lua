-- reserved.lua: reserved units of a key count as used until their reservation is settled, beside its meters.
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
  hold(s, read_reserved(KEYS[s.place], user_key(KEYS[s.k]), now))
end

-- reserved_in returns how many reserved units count in window w: all, until the last reservation has expired. Perhaps
-- no process settles them then. Slots and units that are free do not count any more. The others count as if all had
-- been charged when the last reservation expired (holds.lua charges each when its own one expired).
local function reserved_in(s, w)
  local r, i = s.reserved, s.plan.meter_of[w]
  if not r or r.till > s.now then return s.more end
  local m = s.meters[i]
  if not m or not r.charges or r.till <= m.now - m.span then return 0 end
  if m.meter.late then return m.meter.late(m, s.plan.place_of[w], r.till, r.units) end
  return charged_leaves(s, w, r.till, r.units, 0) > m.now and r.units or 0
end

function hooks.looked(s)
  if s.reserved.till > s.now then return end
  for w = 1, s.plan.n do s.used[w] = s.used[w] - s.more + reserved_in(s, w) end
end

-- settled_by returns t, the time at which a reservation ends. If it has ended and is not settled yet, settled_by
-- returns a later time: as long after now as t is before now, at least 1 ms and at most 1 s, and not after the last
-- reservation ends. A worker settles it within a few ms, but perhaps no worker runs.
local function settled_by(s, t)
  local now, till = s.now, s.reserved.till
  return t > now and t or min(till > now and till or now + 1000, now + max(1, min(1000, now - t)))
end

function hooks.free_at(s, w, n)
  local r, counted = s.reserved, reserved_in(s, w)
  if counted == 0 then return charged_free_at(s, w, n) end
  local left = n > 0 and r.first or r.till
  if s.plan.in_flight[w] then return settled_by(s, left) end
  local latest = r.till > s.now and NO_LEVEL or r.till + s.meters[s.plan.meter_of[w]].span -- see reserved_in
  local still = n >= counted and min(latest, charged_free_at(s, w, n - counted)) -- with these units in the window
  if still and not r.frees then
    -- Units that are charged when they expire may leave earlier: they fade together with the units charged before.
    return still > left and min(still, settled_by(s, charged_leaves(s, w, left, r.units, n))) or still
  end
  if n > 0 and r.frees then
    if charged_in(s, w) > n then left = max(left, charged_free_at(s, w, n)) end
  else
    if r.charges then left = charged_leaves(s, w, left, r.units, n) end
    if n == 0 and charged_in(s, w) > 0 then left = max(left, charged_free_at(s, w, 0)) end
  end
  return min(still or latest, settled_by(s, left), latest)
end

-- mark writes the mark of a key's meters, or removes it, and charges nothing. With at_present it writes at the present
-- time, so that no window ends before that if the clock steps back. Otherwise it writes at the newest event's time.
local function mark(s, at_present)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    m.meter.add(m, at_present and m.now or max(1, m.last), nil, '0')
  end
end
