-- sweep.lua: looks again at keys whose level may have ended. Here levels go down.
--
-- KEYS   1 levels  2 due  3 outbox  4.. the counter of each key
-- ARGV   1 now_ms ('' = the server's clock)
--        then per key: 1 and the rule (prelude.lua), or 0 where no rule matches it any more
-- Reply  transitions written, records that were none of ours
--
-- Calling it early, late or twice does no harm: it reads the truth and writes
-- what has changed.

local LEVELS, DUE, OUTBOX, FIRST = KEYS[1], KEYS[2], KEYS[3], 4
local now, at = clock(), 2
local items = {}
local prove, judge, forget = levels(LEVELS, DUE, OUTBOX)
prove()
for i = FIRST, #KEYS do
  local key, item = user_key(KEYS[i]), nil
  if number(at, 0) == 1 then
    local rule
    rule, at = rule_at(at + 1)
    item = state_of(rule, KEYS[i], now)
    item.falling = true
    item.crossed = function() return item.now end
  else
    item, at = {}, at + 1
  end
  item.key, item.text = key, call('HGET', LEVELS, key)
  items[#items + 1] = item
end

-- Redis refuses a script for want of memory at its first write only, and never
-- at this one, which removes nothing: levels must end then too.
call('HDEL', LEVELS, '')
local transitions, strange = 0, 0
for _, item in ipairs(items) do
  if not item.text then
    call('ZREM', DUE, item.key)
  else
    local written, garbage
    if item.rule then
      written, garbage = judge(item)
    else
      written, garbage = forget(item.key, item.text, now)
    end
    transitions, strange = transitions + written, strange + (garbage and 1 or 0)
  end
end
return {transitions, strange}
