-- sweep.lua: looks again at keys whose level may have ended. Here levels go down.
--
-- KEYS   1 levels  2 due  3 outbox  4.. per record the counter of its key; where the
--        rule is gone, a counter's name with the record's field in the key's place
-- ARGV   1 now_ms ('' = the server's clock)
--        then per record: 1 and its rule alone (prelude.lua), or 0 where that is gone;
--        2 and the rule where that may just have become a shadow, or live: its record
--        then passes from the one field to the other; 3 and the rule where its throttle
--        decision is to be published again, though nothing about it changed
-- Reply  transitions written, records that were corrupt
--
-- Calling it early, late or twice does no harm: it reads the present counts and writes
-- what has changed.
--
-- include: prelude, levels

-- Validate, and read the counters.
local LEVELS, DUE, OUTBOX, FIRST = KEYS[1], KEYS[2], KEYS[3], 4
local now, at = clock(), 2
local items = {}
local check_types, judge, end_levels, drop = levels(LEVELS, DUE, OUTBOX)
check_types()
for i = FIRST, #KEYS do
  local item = {}
  local kind = number(at, 0)
  local key = user_key(KEYS[i])
  at = at + 1
  if kind > 0 then
    local rule
    rule, at = rule_at(at)
    item = state_of(rule, KEYS[i], now, LEVELS)
    item.falling = true
    item.crossed = function() return item.now end
    item.field = field_of(key, rule.spec)
    item.moved, item.restate = kind == 2, kind == 3
  else
    item.field = key
  end
  item.key = key
  items[#items + 1] = item
end

local function near_a_level(s)
  for w = 1, s.rule.n do
    if s.used[w] >= s.rule.lowest[w] then return true end
  end
  return false
end

-- Write. Redis refuses a script for want of memory at its first write only, and never
-- at this one, which removes nothing: levels must end then too.
call('HDEL', LEVELS, '')
local transitions, corrupt_records = 0, 0

-- read_record gives the record of an item, which may stand in its rule's other field yet.
-- Where both stand, what the later one says holds; another rule's is ended by judge.
local function read_record(item)
  local text, key = call('HGET', LEVELS, item.field), item.key
  if not item.rule or text and not item.moved then return text end
  local name = match(item.rule.spec, '^[^;]+')
  local other_field = item.field == key and key .. '\n' .. name or key
  local other, head = call('HGET', LEVELS, other_field), name .. ';'
  if other and sub(other, 1, #head) == head then
    if not text then
      text = other
    elseif sub(text, 1, #head) ~= head then
      transitions = transitions + end_levels(other_field, other, now)
    end
    drop(other_field, other)
  end
  return text
end

-- Decide and write, record by record: the types are proven, so reading cannot fail here.
for _, item in ipairs(items) do
  local written, corrupt = 0, nil
  item.text = read_record(item)
  if item.rule and (item.text or near_a_level(item)) then
    keep(item)
    written, corrupt = judge(item)
  elseif item.text then
    written, corrupt = end_levels(item.field, item.text, now)
  else
    call('ZREM', DUE, item.field)
  end
  transitions, corrupt_records = transitions + written, corrupt_records + (corrupt and 1 or 0)
end
return {transitions, corrupt_records}
