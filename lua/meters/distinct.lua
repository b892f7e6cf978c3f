-- distinct.lua: how many different values a key touched, such as the user names that were tried from one address. A
-- value counts in a window until the window's length after it was last seen.
--
-- A meter is a sorted set: one member per value, and its score is when the value was last seen, in ms. It keeps the
-- values that were seen last: one more than the largest limit (the meter's setting). This is still exact: a value
-- that is dropped was seen before all that are kept, so it cannot matter until it is seen again. The largest value of
-- `used` is one more than the limit of its window, which means: more than the limit.
--
-- A check, and a group of events, has one value per such meter of its plan. The hook `values` (plan.lua) reads them.
-- A value that a window has already takes no unit of the window. Another value takes one: hook `takes`.
--
-- The state of a meter also has value (false: none came); seen, when the value was last seen (0: not yet, nil: not
-- read yet); and denied: a denied check adds no value, although its cost may count (hook `refused`).
--
-- include: library, plan, state

local distinct = {}
algorithms.distinct = distinct

function distinct.open(m, name, now)
  local e = pcall('ZRANGE', name, '-1', '-1', 'WITHSCORES')
  local last = tonumber(e[2] or nil)
  m.last, m.total, m.value, m.seen, m.denied = 0, 0, false, nil, false
  if e.err and is_wrong_type(e) or e[1] and not (last and last >= 0 and last <= now + DAY and last % 1 == 0) then
    corrupt_counters[#corrupt_counters + 1] = name
    m.total = -1 -- the key is removed before the next value is written
    return 0
  end
  m.last = last or 0
  return last and m.meter.setting or 0
end

function distinct.add(m, ms)
  local name, value, keep = m.name, m.value, m.meter.setting
  if not value or m.denied then return end
  if m.total < 0 then call('UNLINK', name) end
  if call('ZADD', name, 'GT', ms_text(ms), value) == 1 then call('ZREMRANGEBYRANK', name, '0', int(-keep - 1)) end
  call('PEXPIRE', name, expiry(m, m.span))
  m.total, m.seen = 0, 0 -- later calls of takes are about another value
  if ms > m.last then m.last = ms end
end

function distinct.used(m, w)
  local from = m.now - m.meter.ms[w]
  if m.last <= from then return 0 end
  return min(call('ZCOUNT', m.name, '(' .. int(from), '+inf'), m.meter.limit[w] + 1)
end

function distinct.free_at(m, w, n)
  local e = n > 0 and call('ZRANGE', m.name, int(-n - 1), int(-n - 1), 'WITHSCORES')
  return (e and e[2] and floor(e[2]) or m.last) + m.meter.ms[w]
end

local function values(s, at)
  for _, i in ipairs(s.plan.valued) do
    local m = s.meters[i]
    m.value, m.seen, at = ARGV[at] ~= '' and ARGV[at], nil, at + 1
  end
  return at
end

-- seen_until returns for how many more ms window w has the value that came (below 1: it does not have it), and the
-- value. Both are false if no value came. It returns nil for a window that counts no values.
local function seen_until(s, w)
  local plan = s.plan
  local m = s.meters[plan.meter_of[w]]
  if not m or m.meter.algo ~= distinct then return end
  if m.value and not m.seen then m.seen = m.last > 0 and floor(call('ZSCORE', m.name, m.value) or 0) or 0 end
  return m.value and m.seen + plan.ms[w] - m.now, m.value
end

local function takes(s, w, n)
  local left, value = seen_until(s, w)
  if left == nil then return n end
  return value and left < 1 and 1 or 0
end

local function refused_values(s)
  for _, i in ipairs(s.plan.valued) do s.meters[i].denied = true end
end

-- later returns how long it is, at least `wait`, until all windows have room. A value that a window has now may have
-- left the window by then.
local function later(s, from, to, wait)
  local before
  repeat
    before = wait
    for w = from, to do
      local left, value = seen_until(s, w)
      local limit = s.plan.limit[w]
      if value and left > 0 and left <= wait and s.used[w] >= limit then
        wait = max(wait, free_at(s, w, limit - 1) - s.now)
      end
    end
  until wait == before
  return wait
end

-- publish adds to a transition, as JSON, the values of each field that were seen last, the newest first.
local function publish(s, entry)
  local values = {}
  for _, i in ipairs(s.plan.valued) do
    local m = s.meters[i]
    local newest = m.total == 0 and m.meter.publish > 0
      and call('ZRANGE', m.name, '0', int(m.meter.publish - 1), 'REV') or {}
    if newest[1] then values[m.meter.field] = newest end
  end
  if next(values) then
    entry[#entry + 1] = 'values'
    entry[#entry + 1] = cjson.encode(values)
  end
end

function distinct.more(meter, given, plan, i)
  local more = given.more or {}
  meter.limit, meter.publish, meter.field = {}, more.publish or 0, more.field
  for place, w in ipairs(given.windows) do meter.limit[place] = plan.limit[w] end
  plan.valued = plan.valued or {}
  plan.valued[#plan.valued + 1] = i
  plan.values, plan.takes, plan.later, plan.refused = values, takes, later, refused_values
  if meter.publish > 0 and not plan.publishes then
    plan.publishes = true
    also_fields(plan, publish)
  end
end
