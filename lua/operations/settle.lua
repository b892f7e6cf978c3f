-- settle.lua: ends a reservation, or renews it. A call that ends it can be sent again, and then changes nothing.
--
-- KEYS   levels, due, outbox, reservations of each partition; then per key its holds and its meters
-- ARGV   1 now_ms ('' = the server's clock)  2 id of the reservation
--        3 commit: each key is charged its cost, which may be above what was reserved; cancel: nothing is charged;
--          withdraw: nothing is charged, and the id is removed; renew: it expires ARGV[4] ms from now; expire: expired
--          units are charged or freed by their policy, and an id that was settled long ago is removed
--        4 for how many ms a settled id is remembered  5 fingerprint of the costs: a word
--        6.. the keys (read_keys in holds.lua); their units are their costs
-- Reply  1 done, 2 the same was done before, 0 the id is not known, -1 it was committed before (with other costs,
--        or this call is no commit), -2 it was cancelled, -3 it has expired, -4 nothing to do; expires_ms; when it was
--        settled; transitions; then per key that has a plan: now, and per window its state
--
-- reserve.lua describes the hash of reservations. A key that was reset since has no hold any more:
-- its cost is charged anyway.
--
-- include: library, plan, state, reserved, records, levels, freed, holds

local RESULT = {commit = 'committed', cancel = 'cancelled', withdraw = 'cancelled', expire = 'expired', renew = 'open'}

function operations.settle()
  -- Validate, and read.
  local now, id, op, ms, fingerprint = clock(), ARGV[2], ARGV[3], number(4, 1), ARGV[5]
  if not RESULT[op] or not match(fingerprint, '^[%w.-]+$') then error('ARGV[3] or ARGV[5] is malformed') end
  local keys, partitions = read_keys(now, 6)
  if refusal then return refusal end

  -- The record: state, expires, ttl, asked (a fingerprint), settled, done (another), and items.
  local records, record = {}, nil
  for p = 0, partitions - 1 do
    local place = PARTITION_SIZE * p + 1
    local text = call('HGET', KEYS[place + RESERVATIONS], id)
    local r = {}
    if text then
      r.state, r.expires, r.ttl, r.asked, r.settled, r.done, r.items =
        match(text, '^(%a+)\n(%d+)\n(%d+)\n([^\n]+)\n(%d+)\n([^\n]+)(.*)$')
      r.expires, r.settled = tonumber(r.expires or nil), tonumber(r.settled or nil)
    end
    if r.state then
      records[place] = r
      if not record or r.state ~= 'open' then record = r end -- in one partition it may have expired already
    end
  end
  prove_key_types(keys)

  -- item_of returns the units and the policy of a key in the record of its partition; 0 units
  -- if the record does not have the key.
  local function item_of(key)
    local r = records[key.place]
    for units, policy, name in string.gmatch(r and r.items or '', '\n(%d+)([cfl])\n([^\n]+)') do
      if name == key.key then return tonumber(units), policy end
    end
    return 0, 'c'
  end

  -- Decide.
  local state = 1
  if not record then
    state = 0
  elseif record.state == 'open' and record.expires <= now then
    state = op == 'expire' and 1 or -3
  elseif record.state == 'open' then
    state = op == 'expire' and -4 or 1
  elseif op == 'expire' then
    state = -4
  elseif record.state == RESULT[op] and (op ~= 'commit' or record.done == fingerprint) then
    state = 2
  else
    state = record.state == 'committed' and -1 or record.state == 'cancelled' and -2 or -3
  end

  -- Write. Expired reservations of the keys are settled first, this one and others.
  local transitions = 0
  for _, key in ipairs(keys) do transitions = transitions + expire_key(key, now) end
  if state == 1 and op ~= 'expire' then
    for _, key in ipairs(keys) do
      local units, policy = item_of(key)
      local member = id .. ':' .. int(units) .. ':' .. policy
      if op == 'renew' then
        call('ZADD', key.holds, 'XX', int(now + ms), member)
      elseif call('ZREM', key.holds, member) == 1 then
        key.sum = max(0, key.sum - units)
      end
      transitions = transitions + write_key(key, key.units, 0, now)
    end
  end
  local function forget_id(place)
    local reservations, word = KEYS[place + RESERVATIONS], word_of(id)
    if word and call('HGET', reservations, word) ~= 'id ' .. id then word = nil end
    call('HDEL', reservations, id, word or id)
    call('ZREM', KEYS[place + DUE], '\n' .. id)
  end
  for place, r in pairs(records) do
    local due = '\n' .. id
    if state == 1 and op == 'withdraw' then
      forget_id(place)
    elseif state == 1 then
      r.state, r.settled, r.done = RESULT[op], op == 'renew' and 0 or now, fingerprint
      if op == 'renew' then r.expires, r.ttl, r.done = now + ms, int(ms), '-' end
      call('HSET', KEYS[place + RESERVATIONS], id, table.concat({r.state, int(r.expires), r.ttl, r.asked,
        int(r.settled), r.done}, '\n') .. r.items)
      call('ZADD', KEYS[place + DUE], int(now + ms), due)
    elseif op == 'expire' and r.state ~= 'open' and r.settled + ms <= now then
      forget_id(place)
    elseif op == 'expire' then
      call('ZADD', KEYS[place + DUE], int(r.state == 'open' and r.expires or r.settled + ms), due)
    end
  end
  if op == 'expire' and not record then
    for p = 0, partitions - 1 do call('ZREM', KEYS[PARTITION_SIZE * p + 1 + DUE], '\n' .. id) end
  end

  local reply, n = {state, record and record.expires or 0, record and record.settled or 0, transitions}, 4
  for _, key in ipairs(keys) do
    if key.s then
      reply[n + 1] = key.s.now
      n = window_states(reply, n + 1, key.s, 0)
    end
  end
  return reply
end
