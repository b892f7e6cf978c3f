-- reset.lua: removes the charged and the reserved units of a key, and ends its levels.
-- Units that processes may still spend are kept (leases.lua).
--
-- KEYS   1 levels  2 due  3 outbox  4 holds of the key  5.. its meters; then
--        the meters that it may have under other algorithms
-- ARGV   1 now_ms ('' = the server's clock)  2 its plan (plan.lua); then the names of shadow rules that the key
--        may have
-- Reply  how many of its keys existed, transitions written
--
-- include: library, plan, state, reserved, records, levels, freed, leases

function operations.reset()
  -- Validate, and read.
  local now, plan, key = clock(), plan_at(2), user_key(KEYS[4])
  prove_types(1)
  local fields, texts = {key}, {}
  for i = 3, #ARGV do fields[#fields + 1] = key .. '\n' .. ARGV[i] end
  for i, field in ipairs(fields) do texts[i] = call('HGET', KEYS[1], field) end
  local leased = read_leased(KEYS[4])
  -- If this fails because the caller has an old period, it must fail before the first write.
  if leased.units > 0 then open_key(plan, 5, 1, now) end
  if refusal then return refusal end

  -- Write.
  local had, transitions = call('UNLINK', unpack(KEYS, 4)), 0
  if leased.units > 0 then
    keep_leased(plan, leased, now)
  else
    call('HDEL', KEYS[1], '\n\n' .. key)
  end
  if had > 0 then mark_freed(KEYS[1]) end
  for i, field in ipairs(fields) do
    if texts[i] then transitions = transitions + end_levels(1, field, texts[i], now) end
  end
  return {had, transitions}
end
