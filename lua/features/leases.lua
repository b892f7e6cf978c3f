-- leases.lua: a reset keeps the units of leases (lease-units.lua), because processes may still spend them. It changes
-- a mark. Processes that hold leases of the partition compare the mark, and give their leases back if it has changed.
--
-- include: library, plan, state, reserved, freed

local RESETS = '\nresets'

-- resets_of returns the mark of a partition.
local function resets_of(levels) return read_mark(levels, RESETS) end

-- read_leased returns a list of the holds of leases, which has each member and when it expires in turn. The table also
-- has units, first and till, as in read_reserved.
local function read_leased(holds)
  local held = pcall('ZRANGE', holds, '0', '-1', 'WITHSCORES')
  if held.err and is_wrong_type(held) then held = {} end
  local leased = {units = 0, first = 0, till = 0}
  for i = 1, #held, 2 do
    local units = tonumber(match(held[i], ':(%d+):l$') or nil)
    if units then
      leased[#leased + 1], leased[#leased + 2] = held[i + 1], held[i]
      leased.units, leased.till = leased.units + units, held[i + 1] + 0
      if leased.first == 0 then leased.first = leased.till end
    end
  end
  return leased
end

-- keep_leased writes the holds of leases and their units again, and changes the mark.
local function keep_leased(plan, leased, now)
  for i = 1, #leased, 2 do call('ZADD', KEYS[4], leased[i], leased[i + 1]) end
  leased.rest = max(0, leased.till - now)
  call('PEXPIRE', KEYS[4], int(max(MIN_EXPIRY_MS, leased.rest + DAY)))
  call('HSET', KEYS[1], '\n\n' .. user_key(KEYS[4]), format('%d;%d;%d;c', leased.units, leased.first, leased.till))
  local s = open_key(plan, 5, 1, now) -- it is empty
  hold(s, leased)
  mark(s)
  call('HSET', KEYS[1], RESETS, int(resets_of(KEYS[1]) + 1))
end
