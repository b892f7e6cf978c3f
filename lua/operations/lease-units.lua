-- lease-units.lua: takes, renews and gives back the units of a key that a process has reserved, so that it can answer
-- from memory (internal/lease). In one step it charges the units that the process has used since the last call, and
-- reserves the units that it will have next.
--
-- A lease is a reservation: a hold of the key with the policy l. Its units count as used until they are charged or
-- given back. If the process does not renew a lease in time, it is charged when it expires. A reset of the key does
-- not remove the holds of leases, because their units may still be spent.
--
-- KEYS   levels, due, outbox, reservations of the partition; the holds of the key; its meters
-- ARGV   1 now_ms ('' = the server's clock)  2 id of the lease  3 ttl in ms until it ends  4 units that it has, 0 if
--        it is new  5 how many of them are not used: the process may use them during the call, so the lease keeps them
--        6 units that it wants to have; 0 ends it  7 the smallest useful number of units: units come in multiples of
--        it  8.. the key (read_keys in holds.lua); its units are the units that were used
-- Reply  1, or 0: the lease had expired and was charged then, so this call charged and kept nothing; the units that it
--        has now; the mark of resets (leases.lua); transitions; then, if it has a plan: now, retry_ms (0 if it has
--        units, otherwise the time until ARGV[7] units are free, -1 never), per window the state of the key after the
--        call
--
-- A lease takes at most three quarters of the room in the windows, those of shadow rules too, because
-- other processes also want units.
--
-- include: library, plan, state, reserved, records, levels, freed, holds, leases

operations['lease-units'] = function()
  -- Validate, and read.
  local now, id, ttl = clock(), ARGV[2], number(3, 1)
  local had, keep, want, least = number(4, 0), number(5, 0), number(6, 0), number(7, 1)
  if not match(id, '^[%w-]+$') then error('ARGV[2] is malformed') end
  local keys = read_keys(now, 8)
  if refusal then return refusal end
  local key = keys[1]
  local place, member, used = key.place, id .. ':' .. int(had) .. ':l', key.units
  local held = had > 0 and call('ZSCORE', key.holds, member)
  if had == 0 then
    used, keep = 0, 0
  elseif not held then
    used, keep, want = 0, 0, 0
  end
  for i, expired in ipairs(key.expired) do
    if expired.member == member then -- nobody has settled it yet
      table.remove(key.expired, i)
      key.sum = key.sum + had
      break
    end
  end
  prove_key_types(keys)
  local resets = resets_of(KEYS[place + LEVELS])

  -- Other reservations that have expired are settled first, so that they do not affect the decision.
  local transitions = expire_key(key, now)

  -- Decide. The process may be using the units that it keeps, so none of them can be taken from it.
  local room, s = nil, key.s
  if s then
    for w = 1, s.plan.n do
      local counted = held and s.more > 0 and floor(had * reserved_in(s, w) / s.more) or 0
      local left = s.plan.limit[w] - (s.used[w] - counted + used)
      room = min(room or left, left)
    end
  end
  local units = keep
  if want > keep and room then
    local most = max(floor(room * 3 / 4), keep + min(least, room - keep))
    units = min(want, most)
    units = max(keep, units - units % least)
  end

  -- Write.
  local record = KEYS[place + RESERVATIONS]
  local renewed, expires = id .. ':' .. int(units) .. ':l', now + ttl
  if units > 0 then call('ZADD', key.holds, int(expires), renewed) end -- first: the holds must not be gone between
  if held and member ~= renewed then call('ZREM', key.holds, member) end
  if held then key.sum = max(0, key.sum - had) end
  if units > 0 then
    join_policy(key, 'c')
    key.sum = key.sum + units
    call('HSET', record, id, format('open\n%d\n%d\n-\n0\n-\n%dl\n%s', expires, ttl, units, key.key))
    call('ZADD', KEYS[place + DUE], int(expires), '\n' .. id)
  elseif had > 0 then
    call('HDEL', record, id)
    call('ZREM', KEYS[place + DUE], '\n' .. id)
  end
  if held or units > 0 then transitions = transitions + write_key(key, used, units - keep, now, true) end

  local reply, n = {(had > 0 and not held) and 0 or 1, units, resets, transitions}, 4
  s = key.s
  if s then
    reply[n + 1] = s.now
    reply[n + 2] = units == 0 and wait(s, least, 1, s.plan.decides) or 0
    window_states(reply, n + 2, s, 0)
  end
  return reply
end
