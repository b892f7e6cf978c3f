-- reset.lua: removes what a key was charged and what is reserved of it, and ends its levels.
-- The units of leases (lease-units.lua) stay: processes may still spend them. A mark tells these to
-- give back what they have.
--
-- KEYS   1 levels  2 due  3 outbox  4 holds of the key  5.. its meters; then
--        those that it may have under other algorithms
-- ARGV   1 now_ms ('' = the server's clock)  2 its plan (plan.lua); then the names of shadow rules that the key
--        may have
-- Reply  how many of its keys there were, transitions written
--
-- include: library, plan, state, reserved, records, levels, freed

-- read_leased gives the holds of leases, as members and when they expire, and as read_reserved does.
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

-- keep_leased writes the holds of leases again, and what a process may still spend of the key.
local function keep_leased(plan, leased, now)
  for i = 1, #leased, 2 do call('ZADD', KEYS[4], leased[i], leased[i + 1]) end
  leased.rest = max(0, leased.till - now)
  call('PEXPIRE', KEYS[4], int(max(MIN_EXPIRY_MS, leased.rest + DAY)))
  call('HSET', KEYS[1], '\n\n' .. user_key(KEYS[4]), format('%d;%d;%d;c', leased.units, leased.first, leased.till))
  local s = open_key(plan, 5, 1, now) -- it is empty
  hold(s, leased)
  mark(s)
end

function operations.reset()
  -- Validate, and read.
  local now, plan, key = clock(), plan_at(2), user_key(KEYS[4])
  prove_types(1)
  local fields, texts = {key}, {}
  for i = 3, #ARGV do fields[#fields + 1] = key .. '\n' .. ARGV[i] end
  for i, field in ipairs(fields) do texts[i] = call('HGET', KEYS[1], field) end
  local leased = read_leased(KEYS[4])
  -- What fails here, as a process has an old period, must fail before the first write.
  if leased.units > 0 then open_key(plan, 5, 1, now) end
  if refusal then return refusal end

  -- Write.
  local had, transitions = call('UNLINK', unpack(KEYS, 4)), 0
  if leased.units > 0 then
    keep_leased(plan, leased, now)
    mark_reset(KEYS[1])
  else
    call('HDEL', KEYS[1], '\n\n' .. key)
  end
  if had > 0 then mark_freed(KEYS[1]) end
  for i, field in ipairs(fields) do
    if texts[i] then transitions = transitions + end_levels(1, field, texts[i], now) end
  end
  return {had, transitions}
end
