-- holds.lua: what reserve.lua, settle.lua and lease-units.lua share: the reservations of a key.
--
-- A member of the holds is id:units:policy, and its score is when it expires. The policy says what happens to
-- the units then: c, they are charged; f, they are free; l, they belong to a lease (lease-units.lua), and are charged.
--
-- include: library, plan, state, reserved, records, levels, freed

-- The offset of a partition's name of reservations from its place in KEYS, and how many names a partition has.
-- (levels, due and outbox are as in records.lua.)
local RESERVATIONS, PARTITION_SIZE = 3, 4

-- word_of returns the part of an id before its partitions.
local function word_of(id) return match(id, '^%w+') end

-- read_key reads the holds of a key, KEYS[k], whose partition has its place in KEYS:
--   sum      the reserved units, without those that have expired
--   was      the result of read_reserved, which has the expired units too; nil if nothing is reserved
--   policy   the policy of its reservations: c, f, or m if they differ
--   expired  the members that have expired, each with `units`, which are to be charged, and `at`, when it expired
--   s        the state of the key; nil if no rule counts it
local function read_key(k, place, now)
  local key = {holds = KEYS[k], key = user_key(KEYS[k]), place = place, units = 0, own_policy = 'c', sum = 0,
               was = nil, policy = 'c', expired = {}, s = nil}
  local r = call('ZCARD', key.holds) > 0 and read_reserved(KEYS[place + LEVELS], key.key, now)
  if not r then return key end
  key.sum, key.was, key.policy = r.units, r, r.policy
  local members = call('ZRANGEBYSCORE', key.holds, '-inf', int(now), 'WITHSCORES', 'LIMIT', '0', '1000')
  for i = 1, #members, 2 do
    local n, policy = match(members[i], ':(%d+):([cfl])$')
    n = tonumber(n or '0')
    key.sum = max(0, key.sum - n)
    table.insert(key.expired, {member = members[i], units = policy ~= 'f' and n or 0,
                               at = floor(tonumber(members[i + 1]) or 0)})
  end
  return key
end

-- read_keys reads ARGV from `at` on:
--   number of partitions, of plans, and the plans (plan.lua); then per key: its partition, its units, its policy, and
--   its plan, 0 if it has none. Partitions and plans are numbered from 1
-- KEYS has per key its holds and its meters. read_keys returns the keys and the number of partitions.
local function read_keys(now, at)
  local partitions, list = number(at, 1), nil
  list, at = plans_at(at + 2, number(at + 1, 0))
  local keys, k = {}, 1 + PARTITION_SIZE * partitions
  for at = at, #ARGV, 4 do
    local key = read_key(k, PARTITION_SIZE * (number(at, 1) - 1) + 1, now)
    key.units, key.own_policy = number(at + 1, 0), ARGV[at + 2]
    if not match(key.own_policy, '^[cfl]$') then error('ARGV[' .. at + 2 .. '] is no policy') end
    local plan = list[number(at + 3, 0)]
    k = k + 1
    if plan then
      key.s = look_at(open_key(plan, k, key.place, now, key.was))
      k = k + plan.many
    end
    keys[#keys + 1] = key
  end
  if k ~= #KEYS + 1 then error('KEYS has ' .. #KEYS .. ' names, expected ' .. k - 1) end
  return keys, partitions
end

-- prove_key_types reads the Redis keys that this file writes and that were not read before, to check their types.
local function prove_key_types(keys)
  for _, key in ipairs(keys) do
    call('HLEN', KEYS[key.place + RESERVATIONS])
    prove_types(key.place)
  end
end

-- stays returns whether units that are charged at `at` (nil: now) count in full in each window for one more second,
-- which is how long a denial is remembered (check/denials.go).
local function stays(s, at)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    local leaves = m.meter.leaves
    for w = 1, m.meter.n do
      local left = leaves and leaves(m, w, at or m.now) or (at or m.now) + m.meter.ms[w]
      if left < m.now + 1000 then return false end
    end
  end
  return true
end

-- join_policy sets the policy of a key after units of a policy are reserved in addition to key.sum.
local function join_policy(key, policy)
  if key.sum > 0 and key.policy ~= policy then policy = 'm' end
  key.policy = policy
end

-- write_reserved writes how many units of a key are reserved, and returns the same as read_reserved.
local function write_reserved(key, now)
  local levels, field = KEYS[key.place + LEVELS], '\n\n' .. key.key
  -- Without units the holds are gone. While a slot moves, Redis refuses a command on a key that is gone, also here.
  local first = key.sum > 0 and call('ZRANGE', key.holds, '0', '0', 'WITHSCORES')
  if not first or not first[1] then
    call('HDEL', levels, field)
    return nil
  end
  local last = call('ZRANGE', key.holds, '-1', '-1', 'WITHSCORES')
  local r = {units = key.sum, first = first[2] + 0, till = last[2] + 0, policy = key.policy,
             frees = key.policy ~= 'c', charges = key.policy ~= 'f'}
  r.rest = max(0, r.till - now)
  local form = key.policy == 'm' and '0%d;%d;%d;c' or '%d;%d;%d;' .. key.policy
  call('HSET', levels, field, format(form, r.units, r.first, r.till))
  call('PEXPIRE', key.holds, int(max(MIN_EXPIRY_MS, r.rest + DAY)))
  return r
end

-- write_key writes the new state of a key: key.sum units are reserved, `granted` of them in this call, and
-- `charge_units` more units are charged, and those of `expired` (nil: none). It returns how many transitions it wrote.
-- It changes the partition's mark (freed.lua) if a denial that other processes remember may now end earlier: units are
-- free, or will be free sooner than those processes computed, at the end of a reservation or when the charged units
-- leave. A denial does not end earlier if the charged units stay (see stays). Then only the wait that the processes
-- computed may be too long, and the mark is changed only near a level.
-- leased: the units are of a lease. They are charged often and soon, so the mark is not changed for a wait.
local function write_key(key, charge_units, granted, now, leased, expired)
  local r, was, old = write_reserved(key, now), key.was, key.s
  -- Units that are charged or freed before their reservation was to end leave earlier than was computed.
  local transitions, freed, near, at = 0, false, false, expired and expired[1].at
  local sooner = was and r and (r.first < was.first or r.till < was.till)
  local earlier = sooner or was and key.sum < was.units
  key.was = r
  if not old then return 0 end
  hold(old, r)
  local written = charge_units > 0 and charge(old, nil, nil, int(charge_units))
  for _, one in ipairs(expired or {}) do -- as late events (fold.lua)
    written = one.units > 0 and charge(old, one.at, nil, int(one.units)) or written
  end
  if not written then mark(old, granted > 0) end
  local s = look_at(open_key(old.plan, old.k, key.place, now))
  near_level(s, key.key, nil, old)
  key.s, s.refunded = s, earlier
  for w = 1, s.plan.n do
    freed = freed or s.used[w] < old.used[w]
    near = near or max(s.used[w], old.used[w]) >= s.plan.lowest[w]
  end
  freed = freed or earlier and (near and not leased or not stays(s, at)) or sooner and (was.frees or r.frees)
  if near then transitions = judge(s) end
  if freed then mark_freed(KEYS[key.place + LEVELS]) end
  return transitions
end

-- expire_key settles the expired reservations of a key, if there are any, because perhaps no process
-- sweeps. It returns how many transitions it wrote. Their records then have the state expired, whatever the clock
-- does. Otherwise a caller that commits a reservation after the clock stepped back would be charged twice.
local function expire_key(key, now)
  if not key.expired[1] then return 0 end
  local reservations, expired = KEYS[key.place + RESERVATIONS], key.expired
  for _, one in ipairs(expired) do
    call('ZREM', key.holds, one.member)
    local id = match(one.member, '^([^:]+):')
    local head, rest = match(id and call('HGET', reservations, id) or '', '^open(\n%d+\n%d+\n[^\n]+\n)0(\n.*)$')
    if head then call('HSET', reservations, id, 'expired' .. head .. int(now) .. rest) end
  end
  key.expired = {}
  return write_key(key, 0, 0, now, false, expired)
end
