-- reserve.lua: may these keys spend these costs, if the final costs are known only later? All of
-- them are reserved or none is. Reserved units count as used until settle.lua settles them.
--
-- KEYS   levels, due, outbox, reservations of each partition; then per key its holds and its meters
-- ARGV   1 now_ms ('' = the server's clock)  2 id of the reservation  3 ttl in ms  4 unused  5 fingerprint of the
--        request: a word, - if the request will not be sent again
--        6.. the keys (read_keys in holds.lua)
-- Reply  1 reserved, 2 this id was reserved before and is still open, 0 denied, -1 this id is settled, -2 it was
--        reserved with another fingerprint; expires_ms; transitions; then per key that has a plan: now, retry_ms (0:
--        there is room, -1: there can never be), per window the state of the key, and per window that does not decide
--        what its retry_ms would have been
--
-- reservations  id -> open|committed|cancelled|expired, expires_ms, ttl, fingerprint, when it was settled, fingerprint
--               of the settlement, then per key of the partition its units with its policy, and the key; each on a
--               line
--               word -> "id ", then the id. It exists for an id that can be requested again; the word is the part
--               of the id before its partitions (holds.lua). A later request with the same word may be for other
--               keys, and then has another id
-- holds         id:units:policy, by expires_ms
-- due           a line feed and the id, by when it expires, and later by when it is to be removed
--
-- Expired reservations of a key are settled in the same call, because perhaps no process sweeps.
--
-- include: library, plan, state, reserved, records, levels, freed, holds

function operations.reserve()
  -- Validate, and read.
  local now, id, ttl, fingerprint = clock(), ARGV[2], number(3, 1), ARGV[5]
  if not match(id, '^[%w.-]+$') or not match(fingerprint, '^[%w.-]+$') then
    error('ARGV[2] or ARGV[5] is malformed')
  end
  local keys, partitions = read_keys(now, 6)
  if refusal then return refusal end
  for _, key in ipairs(keys) do
    if key.units < 1 then error('a key has no units') end
  end
  local state, stands_until, word = 1, now + ttl, fingerprint ~= '-' and word_of(id)
  local of_other = false
  for p = 0, partitions - 1 do
    local text = call('HGET', KEYS[PARTITION_SIZE * p + 1 + RESERVATIONS], id)
    local by_word = word and call('HGET', KEYS[PARTITION_SIZE * p + 1 + RESERVATIONS], word)
    of_other = of_other or by_word and by_word ~= 'id ' .. id
    if text then
      local known, expires, before = match(text, '^(%a+)\n(%d+)\n%d+\n([^\n]*)\n')
      if before ~= fingerprint then
        state = -2
      elseif known ~= 'open' or tonumber(expires) <= now then
        state = min(state, -1)
      elseif state > 0 then
        state, stands_until = 2, tonumber(expires)
      end
    end
  end
  if of_other then state = -2 end
  prove_key_types(keys)

  -- Expired reservations are settled first, so that they do not affect the decision. The types
  -- are proven, so reads cannot fail from here on.
  local transitions = 0
  for _, key in ipairs(keys) do transitions = transitions + expire_key(key, now) end

  -- Decide.
  local allowed, retries = true, {}
  for _, key in ipairs(keys) do
    local s = key.s
    if s then
      local retry = state == 1 and wait(s, key.units, 1, s.plan.decides) or 0
      retries[#retries + 1], allowed = retry, allowed and retry == 0
      for w = s.plan.decides + 1, s.plan.n do retries[#retries + 1] = wait(s, key.units, w, w) end
    end
  end
  if not allowed then
    state = 0
    for _, key in ipairs(keys) do
      if key.s then keep(key.s) end
    end
  end

  -- Write.
  if state == 1 then
    local texts = {}
    for _, key in ipairs(keys) do
      call('ZADD', key.holds, int(stands_until), id .. ':' .. int(key.units) .. ':' .. key.own_policy)
      join_policy(key, key.own_policy)
      key.sum = key.sum + key.units
      transitions = transitions + write_key(key, 0, key.units, now)
      local text = texts[key.place]
        or format('open\n%d\n%d\n%s\n0\n-', stands_until, ttl, fingerprint)
      texts[key.place] = text .. '\n' .. int(key.units) .. key.own_policy .. '\n' .. key.key
    end
    for place, text in pairs(texts) do
      call('HSET', KEYS[place + RESERVATIONS], id, text)
      if word then call('HSET', KEYS[place + RESERVATIONS], word, 'id ' .. id) end
      call('ZADD', KEYS[place + DUE], int(stands_until), '\n' .. id)
    end
  end

  local reply, n, i = {state, stands_until, transitions}, 3, 0
  for _, key in ipairs(keys) do
    local s = key.s
    if s then
      i = i + 1
      reply[n + 1], reply[n + 2] = s.now, retries[i]
      n = window_states(reply, n + 2, s, 0)
      for _ = s.plan.decides + 1, s.plan.n do
        i, n = i + 1, n + 1
        reply[n] = retries[i]
      end
    end
  end
  return reply
end
