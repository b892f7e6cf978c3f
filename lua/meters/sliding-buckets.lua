-- sliding-buckets.lua: a window that is cut into buckets (the meter's setting is how many). A bucket counts until
-- its last millisecond has left the window. So the count is never less than the exact count, and is more by one
-- bucket at most. The size of the value does not depend on the traffic.
--
-- A meter is one string: a line of text and then one ring per window.
--   last[ ms,buckets,bytes,total]...[!]\n ring...
--   last   the newest event's ms
--   total  the running total
--   !      is the mark of holds (reserved.lua)
--   ring   slot b % slots has the running total at the end of bucket b, a number
--          of `bytes` bytes, for the buckets before the one that holds `last`
-- so the units in a window are, as in totals.lua, a difference of two totals.
-- Windows of another ms or number of buckets than the meter's read as empty.
--
-- The state's `total` is a list with a table per window.
--
-- include: library, plan, state

local sliding_buckets = {}
algorithms['sliding-buckets'] = sliding_buckets

local byte, rep = string.byte, string.rep
local MOST = 4503599627370496 -- 2^52: totals stay there, far above any limit

-- size_of returns the width of a bucket in ms, and how many buckets before the newest event's a window can need.
local function size_of(ms, buckets)
  local width = math.ceil(ms / buckets)
  return width, floor((ms - 1) / width) + 2
end

-- number_text returns a number as text of so many bytes, the highest byte first.
local function number_text(x, bytes)
  local t = {}
  for i = bytes, 1, -1 do
    t[i] = x % 256
    x = (x - t[i]) / 256
  end
  return string.char(unpack(t))
end

local function number_at(ring, bytes, slot)
  local x = 0
  for i = slot * bytes + 1, slot * bytes + bytes do x = x * 256 + byte(ring, i) end
  return x
end

-- total_at is the running total at the end of bucket b, where `current` is the
-- bucket of the newest event and b lies at most `slots` before it.
local function total_at(r, b, current)
  if b >= current then return r.total end
  return number_at(r.ring, r.bytes, b % r.slots)
end

-- repack subtracts the units that have left the window from all totals of a ring,
-- and gives the numbers enough bytes to grow.
local function repack(r, current)
  local out, least = {}, total_at(r, current - r.slots, current)
  local top = r.total - least
  while top * 4 >= 256 ^ r.bytes and r.bytes < 7 do r.bytes = r.bytes + 1 end
  local old, bytes = r.ring, #r.ring / r.slots
  for slot = 0, r.slots - 1 do out[slot + 1] = number_text(max(0, number_at(old, bytes, slot) - least), r.bytes) end
  r.total, r.ring = top, table.concat(out)
end

-- advance closes the buckets from the newest event's to the one that holds ms.
local function advance(r, last, ms)
  local from, to = floor(last / r.width), floor(ms / r.width)
  local n, slots = to - from, r.slots
  if n >= slots then
    r.total, r.bytes, r.ring = 0, 2, rep('\0', 2 * slots)
    return
  end
  if n <= 0 then return end
  if r.total >= min(256 ^ r.bytes, MOST / 2) then repack(r, from) end
  local bytes, ring, a = r.bytes, r.ring, from % slots
  local same = number_text(r.total, bytes)
  if a + n <= slots then
    r.ring = sub(ring, 1, a * bytes) .. rep(same, n) .. sub(ring, (a + n) * bytes + 1)
  else
    r.ring = rep(same, a + n - slots) .. sub(ring, (a + n - slots) * bytes + 1, a * bytes) .. rep(same, slots - a)
  end
end

-- read_rings returns the newest event's ms, the rings of the meter's windows, and the
-- greatest of their totals. It returns nothing if the text is corrupt.
local function read_rings(m, text, now)
  local meter = m.meter
  local at = #text <= 589824 and find(text, '\n', 1, true) -- 9 rules take up to 57 KB each
  if not at then return end
  local head, rings, bound = sub(text, 1, at - 1), {}, 0
  local last = tonumber(match(head, '^%d+') or nil)
  if not last or last > now + DAY then return end
  at = at + 1
  for ms, buckets, bytes, total in string.gmatch(head, ' (%d+),(%d+),(%d+),(%d+)') do
    if #ms + #buckets + #bytes + #total > 64 then return end
    ms, buckets, bytes, total = ms + 0, buckets + 0, bytes + 0, total + 0
    local width, slots = size_of(ms, buckets)
    local stop = at + bytes * slots
    for w = 1, meter.n do
      if meter.ms[w] == ms and meter.setting == buckets then
        if bytes < 2 or bytes > 7 or total > MOST then return end
        rings[w] = {ms = ms, width = width, slots = slots, bytes = bytes, total = total,
                    ring = sub(text, at, stop - 1)}
        bound = max(bound, total)
      end
    end
    at = stop
  end
  if at ~= #text + 1 then return end
  if byte(head, -1) == 33 then m.marked = true end
  return last, rings, bound
end

function sliding_buckets.open(m, name, now)
  local text, meter, last, rings, bound = pcall('GET', name), m.meter, 0, nil, 0
  if text then
    if text.err then is_wrong_type(text) else last, rings, bound = read_rings(m, text, now) end
    if not rings then corrupt_counters[#corrupt_counters + 1], last, bound = name, 0, 0 end
  end
  rings = rings or {}
  for w = 1, meter.n do
    if not rings[w] then
      local width, slots = size_of(meter.ms[w], meter.setting)
      rings[w] = {ms = meter.ms[w], width = width, slots = slots, bytes = 2, total = 0,
                  ring = rep('\0', 2 * slots)}
    end
  end
  m.last, m.total = last, rings
  return bound
end

-- An event older than the newest event counts in the newest event's bucket. So it
-- counts longer than in its own bucket, by its lag at most, and never shorter.
function sliding_buckets.add(m, ms, _, count)
  local last, rings, meter = m.last, m.total, m.meter
  if ms < last then ms = last end
  local head, body = {int(ms)}, {'\n'}
  for w = 1, meter.n do
    local r = rings[w]
    advance(r, last, ms)
    r.total = min(r.total + count, MOST)
    head[w + 1] = format(' %d,%d,%d,%d', r.ms, meter.setting, r.bytes, r.total)
    body[w + 1] = r.ring
  end
  if m.marked then head[#head + 1] = '!' end
  call('SET', m.name, table.concat(head) .. table.concat(body), 'PX', expiry(m, 2 * m.span))
  m.last = ms
end

-- before_window returns the bucket before the first one of the window at `now`, and the newest event's bucket.
local function before_window(m, r)
  return floor((m.now - r.ms + 1) / r.width) - 1, floor(m.last / r.width)
end

function sliding_buckets.used(m, w)
  local r = m.total[w]
  local before, current = before_window(m, r)
  local used = r.total - total_at(r, before, current)
  return used < 0 and r.total or used -- a foreign ring
end

-- The window holds at most n units when the last millisecond of the first bucket
-- whose total reaches total - n has left it.
function sliding_buckets.free_at(m, w, n)
  local r = m.total[w]
  local low, current = before_window(m, r)
  local need, high = r.total - n, current -- total_at(low) < need <= total_at(high)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if total_at(r, middle, current) >= need then high = middle else low = middle end
  end
  return (high + 1) * r.width + r.ms - 1
end

function sliding_buckets.leaves(m, w, t, units)
  local r = m.total[w]
  return units and (floor(max(t, m.last) / r.width) + 1) * r.width + r.ms - 1 or t
end

-- take_out raises every total of a ring to that of the last of n units given back.
local function take_out(m, r, n)
  local before, current = before_window(m, r)
  if r.total >= 256 ^ r.bytes then repack(r, current) end
  local least, out = total_at(r, before, current) + n, {}
  for slot = 0, r.slots - 1 do out[slot + 1] = number_text(max(least, number_at(r.ring, r.bytes, slot)), r.bytes) end
  r.ring = table.concat(out)
end

-- The units are the oldest of the longest window. From a shorter window it removes those of
-- the units that the window still holds.
function sliding_buckets.give_back(m, longest, n)
  local used = {}
  for w = 1, m.meter.n do used[w] = sliding_buckets.used(m, w) end
  for w = 1, m.meter.n do
    local take = min(used[w], n - max(0, used[longest] - used[w]))
    if take > 0 then take_out(m, m.total[w], take) end
  end
  sliding_buckets.add(m, m.last, nil, 0)
  return n
end
