-- state.lua: the state of a key: its meters, what its windows hold, and when they will hold less.
--
-- include: library, plan

-- The state s of a key, which open_key makes:
--   plan    what is evaluated for the key (plan.lua)
--   k       the place of its first meter in KEYS; its other meters follow
--   place   the place of its partition's hash of levels in KEYS; due and outbox follow
--   now     the clock's time in ms
--   meters  the states of its meters (plan.lua)
--   used    window -> units in it, after look_at was called
--   below   it is at least this many units below its lowest level
--   more    reserved units, which count in addition to the charged ones (reserved.lua)
-- and, for the operations:
--   charged   units that this call charges
--   near      true if it is near a level
-- and the fields that near_level sets (levels.lua). The first KEPT states are used again from call to call, as new
-- tables would cost more. So open_key sets every field of a state that an operation reads. More states are garbage
-- after their call: the library's memory is outside of maxmemory, and the garbage collector scans it in each call.
local KEPT = 500
local states = {}

-- hooks are what a feature adds to the core for every key:
--   marked(s)         is called if a meter of the key has a mark, or might have one. It finds the units that count in
--                     addition to the charged ones
--   looked(s)         is called by look_at for a key that has such units, to take out those that have left a window
--   free_at(s, w, n)  replaces free_at for a key that has such units
local hooks = {}

local function new_state()
  local s = {used = {0}, before = {0}, meters = {}, plan = false, k = 0, place = 0, now = 0, below = 0, more = 0,
             charged = 0, near = false, reserved = false, key = nil, text = nil, crossed = nil, falling = nil,
             restate = nil, refunded = nil, was_free = nil}
  if used_states <= KEPT then states[used_states] = s end
  return s
end

local function new_meter(s, i)
  s.meters[i] = {meter = false, name = false, now = 0, last = 0, total = 0, span = 0, marked = false, rest = 0,
                 refund = false, empty = false, before = {}, with = {}, first = {}, need = {}, need_at = {}}
  return s.meters[i]
end

-- open_key reads the meters of a key. With reserved_too it reads the reserved units even if no meter has the mark,
-- because the rule may have changed its algorithm since. Checks do not set it, because each check would pay for it.
local function open_key(plan, k, place, now, reserved_too)
  used_states = used_states + 1
  local s = states[used_states] or new_state()
  s.plan, s.k, s.place, s.now, s.more, s.charged, s.near, s.reserved = plan, k, place, now, 0, 0, false, false
  local meters, known, many, below, marked = plan.meters, s.meters, plan.many, NO_LEVEL, reserved_too
  for i = 1, many do
    local meter, m, name = meters[i], known[i] or new_meter(s, i), KEYS[k]
    m.meter, m.name, m.span, m.marked = meter, name, meter.span, false
    local bound = meter.lowest - meter.open(m, name, now)
    if bound < below then below = bound end
    local at = m.last
    m.now, k = (meter.by_clock or at < now) and now or at, k + 1
    if m.marked then marked = true end
  end
  s.below = below
  if marked then hooks.marked(s, now) end
  return s
end

-- charged_in, charged_free_at and charged_leaves count only the charged units of window w.
local function charged_in(s, w)
  local plan = s.plan
  local i = plan.meter_of[w]
  if not i then return 0 end
  local m = s.meters[i]
  return m.meter.used(m, plan.place_of[w])
end
local function charged_free_at(s, w, n)
  local plan = s.plan
  local m = s.meters[plan.meter_of[w]]
  return m.meter.free_at(m, plan.place_of[w], n)
end
local function charged_leaves(s, w, t, units, n)
  local plan = s.plan
  local m = s.meters[plan.meter_of[w]]
  local leaves = m.meter.leaves
  return leaves and leaves(m, plan.place_of[w], t, units, n) or max(t, m.last) + plan.ms[w]
end

-- look_at finds what each window of a key holds. Call it after open_key, and again after units were added in the past.
local function look_at(s)
  local plan, used, more, meters = s.plan, s.used, s.more, s.meters
  for i = 1, plan.many do
    local m = meters[i]
    m.meter.look(m, used, more)
  end
  if plan.slots then
    for _, w in ipairs(plan.slots) do used[w] = more end
  end
  if more > 0 then hooks.looked(s) end
  return s
end

-- free_at returns when window w, which holds more than n units now, will hold at most n if no more
-- traffic comes. If reservations must end before that, it is the earliest possible time.
local function free_at(s, w, n)
  if s.more > 0 then return hooks.free_at(s, w, n) end
  return charged_free_at(s, w, n)
end

-- charge adds `count` units at ms (nil: now) to each meter whose windows reach back to it. It returns if any does.
local function charge(s, ms, id, count)
  local meters, charged = s.meters, false
  for i = 1, s.plan.many do
    local m = meters[i]
    local now = m.now
    local at = ms or now
    if at > now - m.span then
      m.meter.add(m, at, id, count)
      charged = true
    end
  end
  return charged
end

-- expiry returns the expiry of a meter's key that is written now, in ms, as text: at least
-- `ms`, and longer by `rest` if reservations hold units of it. If the clock stepped back, `ms` counts from the newest
-- event, because the clock may be set right again.
local function expiry(m, ms)
  return format('%d', max(MIN_EXPIRY_MS, ms) + max(0, m.last - clock_ms) + (m.marked and m.rest or 0))
end

-- keep extends the expiry of the meters of a key that is not written now to their longest windows. The process that
-- wrote them last may have had shorter windows.
local function keep(s)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    local lasts = m.meter.lasts
    call('PEXPIRE', m.name, int(max(MIN_EXPIRY_MS, lasts and lasts(m) or m.span + m.meter.setting)), 'GT')
  end
end

-- denied_until returns the time until which a key is denied whatever its windows hold; 0: it is not.
local function denied_until(s)
  local hook = s.plan.denied_until
  return hook and hook(s) or 0
end

-- units_of returns how many units of window w n more units take. lacks_room returns whether they do not fit. A request
-- that takes no units always fits.
local function units_of(s, w, n)
  local takes = s.plan.takes
  return takes and takes(s, w, n) or n
end
local function lacks_room(used, more, limit) return more > 0 and used + more > limit end

-- wait returns how many ms it takes until the key has room for n more units in its windows from..to; -1: it never has.
local function wait(s, n, from, to)
  local plan, used, retry = s.plan, s.used, 0
  if from == 1 and plan.denied_until then retry = max(0, plan.denied_until(s) - s.now) end
  for w = from, to do
    local limit, more = plan.limit[w], units_of(s, w, n)
    if more > limit then return -1 end
    if lacks_room(used[w], more, limit) then retry = max(retry, free_at(s, w, limit - more) - s.now) end
  end
  return retry > 0 and plan.later and plan.later(s, from, to, retry) or retry
end

-- window_states puts into a reply, from n + 1 on, three integers per window of a key:
--   used          units, without the last `less` ones
--   next_free_ms  the time at which the first of them is free again; 0 if none are used
--   empty_ms      the time at which all of them are free again; 0 if none are used
-- (For an in-flight window, `used` has all units: units that are charged later in a call are not in it.)
-- Then come the values of hook `in_force`. It returns the new n. (It sets the values one by one: Lua sets several at
-- once from the last to the first, and the list would grow from its end.)
local function window_states(reply, n, s, less)
  local plan, used = s.plan, s.used
  local in_flight, reserved = plan.in_flight, s.more > 0
  for w = 1, plan.n do
    local all, first, last = used[w], 0, 0
    local shown = all - less
    if in_flight[w] then shown = all end
    if shown > 0 and reserved then
      first, last = hooks.free_at(s, w, all - 1), hooks.free_at(s, w, 0)
    elseif shown > 0 then
      local m = s.meters[plan.meter_of[w]]
      first, last = m.meter.free_times(m, plan.place_of[w], all)
    end
    reply[n + 1] = shown
    reply[n + 2] = first
    n = n + 3
    reply[n] = last
  end
  if plan.in_force then
    reply[n + 1], reply[n + 2] = plan.in_force(s)
    n = n + 2
  end
  return n
end

-- reaches_level returns whether n more units bring a window of the key to a level.
local function reaches_level(s, n)
  local used, lowest = s.used, s.plan.lowest
  for w = 1, s.plan.n do
    if used[w] + n >= lowest[w] then return true end
  end
  return false
end

-- give_back removes the oldest n units of w, the longest window, from a key. Each meter gives back those of the units
-- that it still holds. It returns how many were removed from w.
local function give_back(s, w, n)
  local plan, held, taken = s.plan, charged_in(s, w), 0
  local own = plan.meter_of[w]
  for i = 1, plan.many do
    local m, longest = s.meters[i], nil
    local meter = m.meter
    for p = 1, meter.give_back and meter.n or 0 do
      if not longest or meter.ms[p] > meter.ms[longest] then longest = p end
    end
    if i == own then longest = plan.place_of[w] end
    if longest then
      local has = meter.used(m, longest)
      local units = min(has, n - max(0, held - has))
      if units > 0 then
        units = meter.give_back(m, longest, units)
        if i == own then taken = units end
      end
    end
  end
  return taken
end
