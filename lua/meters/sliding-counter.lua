-- sliding-counter.lua: the two-window estimate. The units of the current fixed
-- window, and those of the one before by the share of it that the sliding window
-- still covers, rounded up:
--   used = current + ceil(previous * (ms - elapsed) / ms)
-- It takes them to have come evenly, so it errs either way when they did not.
-- aligned.lua has the form of a meter.
--
-- include: library, plan, state, aligned

local sliding_counter = {open = open_aligned}
algorithms['sliding-counter'] = sliding_counter

-- divide gives quotient and remainder, exact where a < 2^53.
local function divide(a, b)
  local q = floor(a / b)
  local r = a - q * b
  if r < 0 then return q - 1, r + b end
  if r >= b then return q + 1, r - b end
  return q, r
end

-- share is ceil(units * left / ms), exact for units < 2^53 and left <= ms < 2^32:
-- where the product would not fit, it is divided in parts.
local function share(units, left, ms)
  if units * left < 9007199254740992 then
    local q, r = divide(units * left, ms)
    return r > 0 and q + 1 or q
  end
  local whole, rest = divide(units, ms)
  local high, low = floor(left / 65536), left % 65536
  local q1, r1 = divide(rest * high, ms)
  local q2, r2 = divide(r1 * 65536 + rest * low, ms)
  return whole * left + q1 * 65536 + q2 + (r2 > 0 and 1 or 0)
end

function sliding_counter.add(m, ms, _, count) add_aligned(m, ms, count, 2) end

function sliding_counter.used(m, w)
  local start, current, previous = aligned_at(m, w, m.now)
  if previous == 0 then return current end
  local ms = m.meter.ms[w]
  return current + share(previous, start + ms - m.now, ms)
end

-- faded gives when at most n units are left of those of the window before the one that begins at start.
local function faded(start, ms, units, n)
  local left = floor(n / units * ms) -- and exactly, from there:
  while share(units, left + 1, ms) <= n do left = left + 1 end
  while left > 0 and share(units, left, ms) > n do left = left - 1 end
  return start + ms - left
end

-- The estimate falls steadily: what is left of `previous` until this window
-- ends, then what is left of `current` in the next one.
function sliding_counter.free_at(m, w, n)
  local start, units, previous = aligned_at(m, w, m.now)
  local ms = m.meter.ms[w]
  if units > n then return faded(start + ms, ms, units, n) end
  return faded(start, ms, previous, n - units)
end

-- Units that are charged at t fade together with those that are in its window already.
function sliding_counter.leaves(m, w, t, units, n)
  if not units then return t end
  t = max(t, m.now)
  local ms = m.meter.ms[w]
  local start, current, previous = aligned_at(m, w, t)
  current = current + units
  if current > n then return faded(start + ms, ms, current, n) end
  return max(t, previous > 0 and faded(start, ms, previous, n - current) or t)
end

function sliding_counter.give_back(m, w, n) return give_back_aligned(m, w, n, 2) end
