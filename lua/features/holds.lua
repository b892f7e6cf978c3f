-- holds.lua: what reserve.lua, settle.lua and lease-units.lua share: the reservations of a key.
--
-- A member of the holds is id:units:policy, by when it expires. Its policy says what becomes of the
-- units then: c, they are charged; f, they are free; l, they are of a lease (lease-units.lua), and charged.
--
-- include: library, plan, state, reserved, records, levels, freed

-- Where the names of a partition stand, after its place in KEYS. (levels, due and outbox are as in records.lua.)
local RESERVATIONS, PARTITION_SIZE = 3, 4

-- word_of gives what stands in an id before its partitions.
local function word_of(id) return match(id, '^%w+') end

-- read_key reads the holds of a key, KEYS[k], whose partition has its place in KEYS:
--   sum      the units that are reserved, without those that have expired
--   was      what read_reserved gave: with them; nil where nothing is
--   policy   of its reservations: c, f, or m where they differ
--   expired  the members that have; charged: their units that are to be charged
--   s        the state of the key; nil where no rule counts it
local function read_key(k, place, now)
  local key = {holds = KEYS[k], key = user_key(KEYS[k]), place = place, units = 0, own_policy = 'c', sum = 0,
               was = nil, charged = 0, policy = 'c', expired = nil, s = nil}
  local r = call('ZCARD', key.holds) > 0 and read_reserved(KEYS[place + LEVELS], key.key, now)
  if not r then return key end
  key.sum, key.was, key.policy = r.units, r, r.policy
  local members = call('ZRANGEBYSCORE', key.holds, '-inf', int(now), 'LIMIT', '0', '1000')
  for _, member in ipairs(members) do
    local n, policy = match(member, ':(%d+):([cfl])$')
    n = tonumber(n or '0')
    key.expired, key.sum = members, max(0, key.sum - n)
    if policy ~= 'f' then key.charged = key.charged + n end
  end
  return key
end

-- read_keys reads what ARGV[at] and those that follow say:
--   number of partitions, of plans, and the plans (plan.lua); then per key: its partition, its units, its policy, and
--   its plan, 0 where it has none. All are numbered from 1
-- KEYS has per key its holds and its meters. It gives the keys and the number of partitions.
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

-- prove_key_types reads what is written here and was not read before.
local function prove_key_types(keys)
  for _, key in ipairs(keys) do
    call('HLEN', KEYS[key.place + RESERVATIONS])
    prove_types(key.place)
  end
end

-- stays tells whether what is charged now counts in full in each window for as long as a denial is remembered,
-- a second (check/denials.go).
local function stays(s)
  for i = 1, s.plan.many do
    local m = s.meters[i]
    local leaves = m.meter.leaves
    for w = 1, m.meter.n do
      local left = leaves and leaves(m, w, m.now) or m.now + m.meter.ms[w]
      if left < m.now + 1000 then return false end
    end
  end
  return true
end

-- join_policy notes that units are reserved besides key.sum, of a policy.
local function join_policy(key, policy)
  if key.sum > 0 and key.policy ~= policy then policy = 'm' end
  key.policy = policy
end

-- write_reserved writes how many units of a key are reserved, and gives it, as read_reserved does.
local function write_reserved(key, now)
  local levels, field = KEYS[key.place + LEVELS], '\n\n' .. key.key
  local first = call('ZRANGE', key.holds, '0', '0', 'WITHSCORES')
  if not first[1] or key.sum <= 0 then
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

-- write_key writes what has become of a key: key.sum units are reserved, of them `granted` just now,
-- and `charge_units` units more charged. It gives the transitions written.
-- Others are told where a denial that they remember may end earlier for it: units are free, or are to be so sooner
-- than was said, at the end of a reservation or when what was charged has left. It does not where what is charged
-- stays; then the wait that they were told may be too long, and they are told of that near a level.
-- leased: that is of a lease. It is charged often, and soon: waits are not told anew for it.
local function write_key(key, charge_units, granted, now, leased)
  local r, was, old = write_reserved(key, now), key.was, key.s
  -- Units that are charged or freed before their reservation was to end leave earlier than was said.
  local transitions, freed, near = 0, false, false
  local sooner = was and r and (r.first < was.first or r.till < was.till)
  local earlier = sooner or was and key.sum < was.units
  key.was = r
  if not old then return 0 end
  hold(old, r)
  if charge_units > 0 then
    charge(old, nil, nil, int(charge_units))
  else
    mark(old, granted > 0)
  end
  local s = look_at(open_key(old.plan, old.k, key.place, now))
  near_level(s, key.key)
  key.s, s.refunded = s, earlier
  for w = 1, s.plan.n do
    freed = freed or s.used[w] < old.used[w]
    near = near or max(s.used[w], old.used[w]) >= s.plan.lowest[w]
  end
  freed = freed or earlier and (near and not leased or not stays(s)) or sooner and (was.frees or r.frees)
  if near then transitions = judge(s) end
  if freed then mark_freed(KEYS[key.place + LEVELS]) end
  return transitions
end

-- expire_key settles what has expired of a key, where something has, as nobody may be there
-- to sweep. It gives the transitions written. The records say so from then on, whatever the clock does: who
-- committed one after a step back would be charged twice.
local function expire_key(key, now)
  if not key.expired then return 0 end
  local reservations = KEYS[key.place + RESERVATIONS]
  for _, member in ipairs(key.expired) do
    call('ZREM', key.holds, member)
    local id = match(member, '^([^:]+):')
    local head, rest = match(id and call('HGET', reservations, id) or '', '^open(\n%d+\n%d+\n[^\n]+\n)0(\n.*)$')
    if head then call('HSET', reservations, id, 'expired' .. head .. int(now) .. rest) end
  end
  key.expired = nil
  return write_key(key, key.charged, 0, now)
end
