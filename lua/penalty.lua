-- penalty.lua: how long a key is denied at least once it is throttled, and longer each time that this
-- happens again. It is a part of a counter (mixed.lua) that counts no window.
--
-- A string per key, which ends by itself once the key's throttles are forgotten:
--   step;ends   which step the last penalty was, from 1, and when it ends, in ms
--
-- levels.lua starts a penalty where a throttle begins, and lifts it where the rule's change ends that.
-- What checks ask is penalty_of.
--
-- include: prelude

local penalty = {}
algorithms.penalty = penalty

-- more reads the steps in ms, and for how long after the end of one it is remembered.
function penalty.more(part, i)
  part.steps = {}
  for k = 1, number(i, 1) do part.steps[k] = number(i + k, 1) end
  i = i + #part.steps + 1
  part.forget = number(i, 1)
  return i + 1
end

function penalty.open(name, now)
  local text = pcall('GET', name)
  if text and text.err then
    is_wrong_type(text)
    text = false
  end
  local step, ends = match(text and #text <= 40 and text or '', '^(%d+);(%d+)$')
  step, ends = tonumber(step or nil), tonumber(ends or nil)
  if not step or step < 1 or step > 1000 or ends > now + 400 * DAY then
    if text then corrupt_counters = corrupt_counters + 1 end
    return 0, {step = 0, ends = 0}, 0
  end
  return 0, {step = step, ends = ends}, 0
end

function penalty.add(_, _, last, state) return last, state end

local function write(name, part, now, state)
  call('SET', name, int(state.step) .. ';' .. int(state.ends), 'PX',
    int(math.max(MIN_EXPIRY_MS, state.ends - now) + part.forget))
end

-- start begins the next step at `since`; lift ends the one that stands, which is remembered.
function penalty.start(name, part, now, state, since)
  local again = state.step > 0 and since < state.ends + part.forget
  state.step = again and math.min(state.step + 1, #part.steps) or 1
  state.ends = since + part.steps[state.step]
  write(name, part, now, state)
end
function penalty.lift(name, part, now, state)
  state.ends = now
  write(name, part, now, state)
end
