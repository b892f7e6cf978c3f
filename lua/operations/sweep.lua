-- sweep.lua: evaluates keys whose level may have ended. Levels go down here.
--
-- KEYS   1 levels  2 due  3 outbox  4.. per record the meters of its key; if no rule counts the
--        key now, their names have the record's field in the key's place
-- ARGV   1 now_ms ('' = the server's clock)
--        then per record: 0, or above 0 if its throttle decision must be published again, with a version above this
--        number; then a plan with only its rule, or with no rule (plan.lua)
-- Reply  transitions written, records that were corrupt
--
-- Calling it early, late or twice does no harm: it reads the present counts and writes only what has changed.
--
-- include: library, plan, state, reserved, records, levels

local PLACE = 1 -- the place of the only partition in KEYS

-- read_items returns per record its key, rule (nil if none counts the key), field, s (the state of its key), restated.
local function read_items(now)
  local items, at, k = {}, 2, 4
  while k <= #KEYS do
    local above, plan, key = number(at, 0), plan_at(at + 1), user_key(KEYS[k])
    local rule = plan.rules[1]
    items[#items + 1] = {key = key, rule = rule, field = rule and field_of(key, rule) or key,
                         s = look_at(open_key(plan, k, PLACE, now, true)), restated = above > 0 and above}
    at, k = at + 2, k + plan.many
  end
  return items
end

-- read_record returns the record of an item, and how many transitions it wrote. Its rule may also have a record in its
-- other field: as live, if it has become a shadow rule, or the reverse. If the item's field has the record of another
-- rule, judge ends that record. The other record is dropped last: no write may follow an emptied `due` (holds.lua).
local function read_record(item, now)
  local text, key, written = call('HGET', KEYS[PLACE + LEVELS], item.field), item.key, 0
  if not item.rule then return text, 0 end
  local name = item.rule.name
  local other_field, head = item.field == key and key .. '\n' .. name or key, name .. ';'
  local other = call('HGET', KEYS[PLACE + LEVELS], other_field)
  if not other or sub(other, 1, #head) ~= head then return text, 0 end
  if not text or sub(text, 1, #head) == head then
    text = merged(text, other, now)
  else
    written = end_levels(PLACE, other_field, other, now)
  end
  item.other_field, item.other = other_field, other
  return text, written
end

function operations.sweep()
  -- Validate, and read.
  local now = clock()
  prove_types(PLACE)
  local items = read_items(now)
  if refusal then return refusal end

  -- Write. If it is out of memory, Redis refuses a call only at its first write, and it never refuses this one.
  call('HDEL', KEYS[PLACE + LEVELS], '')
  local transitions, corrupt_records = 0, 0
  for _, item in ipairs(items) do -- the types are proven, so reading cannot fail here
    local text, moved = read_record(item, now)
    local written, corrupt, s = 0, nil, item.s
    if s.plan.lifted then s.plan.lifted(s) end
    if item.rule and (text or reaches_level(s, 0)) then
      keep(s)
      near_level(s, item.key, text)
      s.falling, s.restate = true, item.restated
      written, corrupt = judge(s)
    elseif text then
      written, corrupt = end_levels(PLACE, item.field, text, now)
    else
      call('ZREM', KEYS[PLACE + DUE], item.field)
    end
    if item.other then drop(PLACE, item.other_field, item.other) end
    transitions, corrupt_records = transitions + moved + written, corrupt_records + (corrupt and 1 or 0)
  end
  return {transitions, corrupt_records}
end
