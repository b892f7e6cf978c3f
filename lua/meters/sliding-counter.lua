-- sliding-counter.lua: the two-window estimate. It adds the units of the current
-- fixed window and a share of the previous window's units, rounded up. The share is
-- the part of the previous window that the sliding window still covers:
--   used = current + ceil(previous * (ms - elapsed) / ms)
-- It assumes that the units came evenly. If they did not, the estimate can be too
-- high or too low. aligned.lua has the form of a meter.
--
-- include: library, plan, state, aligned

local sliding_counter = {open = open_aligned}
algorithms['sliding-counter'] = sliding_counter

-- divide returns quotient and remainder, exact if a < 2^53.
local function divide(a, b)
  local q = floor(a / b)
  local r = a - q * b
  if r < 0 then return q - 1, r + b end
  if r >= b then return q + 1, r - b end
  return q, r
end

-- share returns ceil(units * left / ms), exact for units < 2^53 and left <= ms <= 366 days (< 2^34.9).
-- If the product does not fit, it is divided in parts.
local function share(units, left, ms)
  if units * left < 9007199254740992 then
    local q, r = divide(units * left, ms)
    return r > 0 and q + 1 or q
  end
  local whole, rest = divide(units, ms)
  local high, low = floor(left / 131072), left % 131072
  local q1, r1 = divide(rest * high, ms)
  local q2, r2 = divide(r1 * 131072 + rest * low, ms)
  return whole * left + q1 * 131072 + q2 + (r2 > 0 and 1 or 0)
end

function sliding_counter.add(m, ms, _, count) add_aligned(m, ms, count, 2) end

function sliding_counter.used(m, w)
  local start, current, previous = aligned_at(m, w, m.now)
  if previous == 0 then return current end
  local ms = m.meter.ms[w]
  return current + share(previous, start + ms - m.now, ms)
end

-- faded returns when at most n units are left. The units are of the window before the one that begins at start.
local function faded(start, ms, units, n)
  local left = floor(n / units * ms) -- and exactly, from there:
  while share(units, left + 1, ms) <= n do left = left + 1 end
  while left > 0 and share(units, left, ms) > n do left = left - 1 end
  return start + ms - left
end

-- The estimate falls steadily: first the rest of `previous`, until this window ends,
-- then the rest of `current`, in the next window.
function sliding_counter.free_at(m, w, n)
  local start, units, previous = aligned_at(m, w, m.now)
  local ms = m.meter.ms[w]
  if units > n then return faded(start + ms, ms, units, n) end
  return faded(start, ms, previous, n - units)
end

-- Units that are charged at t fade together with the units that the window of t has already.
function sliding_counter.leaves(m, w, t, units, n)
  if not units then return t end
  local ms = m.meter.ms[w]
  local start, current, previous = aligned_at(m, w, max(t, m.now))
  if t >= start then current = current + units elseif t >= start - ms then previous = previous + units end
  if current > n then return faded(start + ms, ms, current, n) end
  return max(t, previous > 0 and faded(start, ms, previous, n - current) or t)
end

function sliding_counter.late(m, w, t, units)
  local start, _, previous = aligned_at(m, w, m.now)
  local ms = m.meter.ms[w]
  local left = start + ms - m.now
  return t >= start and units or t < start - ms and 0 or share(previous + units, left, ms) - share(previous, left, ms)
end

function sliding_counter.give_back(m, w, n) return give_back_aligned(m, w, n, 2) end
