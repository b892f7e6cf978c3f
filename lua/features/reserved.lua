-- reserved.lua: reserved units of a key count as used until their reservation is settled. Here they are added to
-- what the key's meters hold.
--
-- Each meter of such a key is marked, and how many units they are stands in one field of the hash of levels, so that
-- a key without reservations pays nothing:
--   "\n\n" and the key -> units;first;till;c|f
--   first, till  when the first and the last of the reservations expire, in ms
--   c|f          what becomes of units then: they are charged, or free; where it differs, c, and units begin with a
--                zero (processes of before, which knew no difference, count them then)
--
-- include: library, plan, state

-- read_reserved gives what is reserved of a key, nil where nothing is: units, first, till, policy, frees and
-- charges, whether any units are free then and whether any are charged, and rest, for how long yet.
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

-- hold makes r what is reserved of a key; nil: nothing. The next write sets the mark of its meters, or takes it off.
local function hold(s, r)
  s.reserved, s.more = r or false, r and r.units or 0
  for i = 1, s.plan.many do
    local m = s.meters[i]
    m.marked, m.rest = r and true or false, r and r.rest or 0
  end
end

function hooks.marked(s, now)
  local r = read_reserved(KEYS[s.place], user_key(KEYS[s.k]), now)
  -- Nobody may be there to settle what has expired. Charged then, it would have left the windows.
  if r then
    local span = 0
    for i = 1, s.plan.many do span = max(span, s.meters[i].span) end
    if r.till + (r.charges and span or 0) <= now then r = nil end
  end
  hold(s, r)
end

-- settled_by is t, when a reservation ends. Where it has ended, and was not settled yet, it is as long from now as it
-- has been waited for: a worker settles it within ms, and perhaps there is none.
local function settled_by(s, t)
  return t > s.now and t or s.now + max(1, min(1000, s.now - t))
end

function hooks.free_at(s, w, n)
  local r = s.reserved
  local left = n > 0 and r.first or r.till
  if s.plan.in_flight[w] then return settled_by(s, left) end
  local still = n >= r.units and charged_free_at(s, w, n - r.units) -- with all of them in it
  if still and not r.frees then
    -- Charged at their end they may leave earlier: they fade together with what is charged already.
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

-- mark writes the mark of a key's meters, or takes it off, and charges nothing. at_present: at the present, so that
-- no window may end before it, should the clock step back; else it moves no clock.
local function mark(s, at_present)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    m.meter.add(m, at_present and m.now or max(1, m.last), nil, '0')
  end
end
