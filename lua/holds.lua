-- holds.lua: what reserve.lua, settle.lua and lease-units.lua share: the reservations of a key.
--
-- A member of the holds is id:units:policy, by when it expires. Its policy says what becomes of the
-- units then: c, they are charged; f, they are free; l, they are of a lease (lease-units.lua), and charged.
--
-- include: prelude, levels, freed

-- Where the names of a partition stand, after its place in KEYS.
local LEVELS, DUE, OUTBOX, RESERVATIONS, PARTITION_SIZE = 1, 2, 3, 4, 4

-- word_of gives what stands in an id before its partitions.
local function word_of(id) return match(id, '^%w+') end

-- read_key reads the holds of a key, KEYS[k], in whose partition's place in KEYS it is:
--   sum      the units that are reserved, without those that have expired
--   was      what read_reserved gave: with them; nil where nothing is
--   policy   of its reservations: c, f, or m where they differ
--   expired  the members that have; charged: their units that are to be charged
local function read_key(k, place, now)
  local key = {holds = KEYS[k], key = user_key(KEYS[k]), place = place, units = 0, own_policy = 'c', sum = 0,
               was = nil, charged = 0, policy = 'c', expired = nil, counters = {}, judge = nil}
  local r = call('ZCARD', key.holds) > 0 and read_reserved(KEYS[place + LEVELS], key.key, now)
  if not r then return key end
  key.sum, key.was, key.policy = r.units, r, r.policy
  local members = call('ZRANGEBYSCORE', key.holds, '-inf', int(now), 'LIMIT', '0', '1000')
  for _, member in ipairs(members) do
    local n, policy = match(member, ':(%d+):([cfl])$')
    n = tonumber(n or '0')
    key.expired, key.sum = members, math.max(0, key.sum - n)
    if policy ~= 'f' then key.charged = key.charged + n end
  end
  return key
end

-- read_counters reads the counters of a key, KEYS[k] and those that follow: ARGV[at] is how
-- many they are, the rule of each follows. It gives the next places in both.
local function read_counters(key, rules, k, at, now)
  for i = 1, number(at, 0) do
    local rule = rules[number(at + i, 1)]
    key.counters[i] = state_of(rule, KEYS[k], now, KEYS[key.place + LEVELS])
    k = k + 1
  end
  return k, at + number(at, 0) + 1
end

-- read_keys reads what ARGV[at] and those that follow say:
--   number of partitions, of rules, and the rules (prelude.lua); then per key: its partition, its
--   units, its policy,
--   how many counters it has, and the rule of each. All are numbered from 1
-- It gives the keys and the number of partitions.
local function read_keys(now, at)
  local partitions, rules, count = number(at, 1), {}, number(at + 1, 0)
  at = at + 2
  for r = 1, count do rules[r], at = rule_at(at) end
  local keys, k = {}, 1 + PARTITION_SIZE * partitions
  while at <= #ARGV do
    local key = read_key(k, PARTITION_SIZE * (number(at, 1) - 1), now)
    key.units, key.own_policy = number(at + 1, 0), ARGV[at + 2]
    if not match(key.own_policy, '^[cfl]$') then error('ARGV[' .. at + 2 .. '] is no policy') end
    k, at = read_counters(key, rules, k + 1, at + 3, now)
    keys[#keys + 1] = key
  end
  if k ~= #KEYS + 1 then error('KEYS has ' .. #KEYS .. ' names, expected ' .. k - 1) end
  return keys, partitions
end

-- prove_types reads what is written here and was not read before.
local function prove_types(keys)
  for _, key in ipairs(keys) do
    local place = key.place
    call('HLEN', KEYS[place + RESERVATIONS])
    local check_types, judge = levels(KEYS[place + LEVELS], KEYS[place + DUE], KEYS[place + OUTBOX])
    check_types()
    key.judge = judge
  end
end

-- stays tells whether what is charged now counts in full in each window for as long as a denial is remembered,
-- a second (check/denials.go).
local function stays(s)
  local algo = s.rule.algo
  local log = algo == algorithms['sliding-log'] or algo == algorithms['sliding-log-packed']
    or algo == algorithms['sliding-log-zset']
  if not log and (s.rule.parts or not algo.leaves) then return false end
  for w = 1, s.rule.n do
    local left = log and s.now + s.rule.ms[w] or algo.leaves(s, w, s.now)
    if left < s.now + 1000 then return false end
  end
  return true
end

-- join_policy notes that units are reserved besides key.sum, of a policy.
local function join_policy(key, policy)
  if key.sum > 0 and key.policy ~= policy then policy = 'm' end
  key.policy = policy
end

-- write_key writes what has become of a key: key.sum units are reserved, of them `granted` just now,
-- and `charge` units more charged. It gives the transitions written.
-- Others are told where a denial that they remember may end earlier for it: units are free, or are to be so sooner
-- than was said, at the end of a reservation or when what was charged has left. It does not where what is charged
-- stays; then the wait that they were told may be too long, and they are told of that near a level.
-- leased: that is of a lease. It is charged often, and soon: waits are not told anew for it.
local function write_key(key, charge, granted, now, leased)
  local levels_hash, field, r = KEYS[key.place + LEVELS], '\n\n' .. key.key, nil
  local first = call('ZRANGE', key.holds, '0', '0', 'WITHSCORES')
  if first[1] and key.sum > 0 then
    local last = call('ZRANGE', key.holds, '-1', '-1', 'WITHSCORES')
    r = {units = key.sum, first = first[2] + 0, till = last[2] + 0, policy = key.policy, frees = key.policy ~= 'c',
         charges = key.policy ~= 'f'}
    r.rest = math.max(0, r.till - now)
    local form = key.policy == 'm' and '0%d;%d;%d;c' or '%d;%d;%d;' .. key.policy
    call('HSET', levels_hash, field, format(form, r.units, r.first, r.till))
    call('PEXPIRE', key.holds, int(math.max(MIN_EXPIRY_MS, r.rest + DAY)))
  else
    call('HDEL', levels_hash, field)
  end
  -- Units that are charged or freed before their reservation was to end leave earlier than was said.
  local transitions, freed, was = 0, false, key.was
  local sooner = was and r and (r.first < was.first or r.till < was.till)
  local earlier = sooner or was and key.sum < was.units
  key.was = r
  for i, s in ipairs(key.counters) do
    local rule, counter, before, near = s.rule, s.counter, s.used, false
    marks = marks or {}
    marks[counter] = r
    if charge > 0 then
      rule.algo.add(counter, rule, s.last, s.total, s.now, nil, int(charge))
    else
      -- The mark alone. What was granted was granted at this time: should Redis's clock step back, no window
      -- may end before it. Otherwise it moves no clock.
      rule.algo.add(counter, rule, s.last, s.total, granted > 0 and s.now or math.max(1, s.last), nil, '0')
    end
    s = state_of(rule, counter, now, levels_hash)
    key.counters[i] = s
    s.key, s.crossed = key.key, function() return s.now end
    for w = 1, rule.n do
      freed = freed or s.used[w] < before[w]
      near = near or math.max(s.used[w], before[w]) >= rule.lowest[w]
    end
    s.refunded = earlier
    freed = freed or earlier and (near and not leased or not stays(s)) or sooner and (was.frees or r.frees)
    if near then transitions = transitions + key.judge(s) end
  end
  if freed then mark_freed(levels_hash) end
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
