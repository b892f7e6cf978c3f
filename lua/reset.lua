-- reset.lua: removes what a key was charged and what is reserved of it, and ends its levels.
-- The units of leases (lease-units.lua) stay: processes may still spend them. A mark tells these to
-- give back what they have.
--
-- KEYS   1 levels  2 due  3 outbox  4 holds of the key  5.. the counters that it is counted in; then
--        those that it may have under other algorithms
-- ARGV   1 now_ms ('' = the server's clock)  2 how many it is counted in; then the rule of each
--        (prelude.lua); then the names of shadow rules that the key may have
-- Reply  how many counters the key had, transitions written
--
-- include: prelude, levels, freed

-- Validate, and read.
local now, at, rules = clock(), 3, {}
for c = 1, number(2, 0) do rules[c], at = rule_at(at) end
local check_types, _, end_levels = levels(KEYS[1], KEYS[2], KEYS[3])
local key = user_key(KEYS[4])
check_types()
local fields, texts = {key}, {}
for i = at, #ARGV do fields[#fields + 1] = key .. '\n' .. ARGV[i] end
for i, field in ipairs(fields) do texts[i] = call('HGET', KEYS[1], field) end
-- Markers of carry.lua stay: they tell processes with older rules where to count.
local counters = {}
for i = 5, #KEYS do
  if not is_marker(KEYS[i]) then counters[#counters + 1] = KEYS[i] end
end
-- What is reserved: leased are the holds of leases, as members and when they expire.
local held = pcall('ZRANGE', KEYS[4], '0', '-1', 'WITHSCORES')
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
-- What fails here, as a process has an old period or an old algorithm, must fail before the first write.
if leased.units > 0 then
  for c, rule in ipairs(rules) do
    if not is_marker(KEYS[4 + c]) then rule.algo.open(KEYS[4 + c], now, rule) end
  end
end

-- Write.
local had, transitions = 0, 0
if counters[1] then had = call('UNLINK', unpack(counters)) end
had = had + call('UNLINK', KEYS[4])
if leased.units > 0 then
  for i = 1, #leased, 2 do call('ZADD', KEYS[4], leased[i], leased[i + 1]) end
  leased.rest = math.max(0, leased.till - now)
  call('PEXPIRE', KEYS[4], int(math.max(MIN_EXPIRY_MS, leased.rest + DAY)))
  call('HSET', KEYS[1], '\n\n' .. key, format('%d;%d;%d;c', leased.units, leased.first, leased.till))
  for c, rule in ipairs(rules) do -- the mark of what is reserved
    local counter = KEYS[4 + c]
    if not is_marker(counter) then
      local last, total = rule.algo.open(counter, now, rule) -- it is empty
      marks = {[counter] = leased}
      rule.algo.add(counter, rule, last, total, 1, nil, '0')
    end
  end
else
  call('HDEL', KEYS[1], '\n\n' .. key)
end
if had > 0 then mark_freed(KEYS[1]) end
if leased.units > 0 then mark_reset(KEYS[1]) end
for i, field in ipairs(fields) do
  if texts[i] then transitions = transitions + end_levels(field, texts[i], now) end
end
return {had, transitions}
