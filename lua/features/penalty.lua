-- penalty.lua: the shortest time for which a key is denied after it is throttled. The time is longer each
-- time that this happens again. A penalty is a meter that counts no window, and hooks of its plan (plan.lua).
--
-- A meter is one string, which expires when the key's throttles are to be forgotten:
--   step;ends   which step the last penalty was, from 1, and when it ends, in ms
--
-- include: library, plan, state

local penalty = {}
algorithms.penalty = penalty

function penalty.open(m, name, now)
  local text = pcall('GET', name)
  local known = text and not (text.err and is_wrong_type(text)) and #text <= 40
  local step, ends = match(known and text or '', '^(%d+);(%d+)$')
  step, ends = tonumber(step or nil), tonumber(ends or nil)
  if not step or step < 1 or step > 1000 or ends > now + 400 * DAY then
    if text then corrupt_counters[#corrupt_counters + 1] = name end
    step, ends = 0, 0
  end
  m.last, m.total = 0, {step = step, ends = ends}
  return 0
end

function penalty.add() end

-- more reads the steps in ms, and for how many ms after its end a penalty is remembered. A meter without them is of a
-- rule, or of no rule, that has no penalty: a sweep then ends the one that the key has (hook lifted).
function penalty.more(_, given, plan, i)
  -- released ends the present penalty if a change of the rule ends the throttle. The penalty is still remembered.
  local function released(s)
    local m = s.meters[i]
    if m.total.ends <= s.now then return end
    m.total.ends = s.now
    call('SET', m.name, int(m.total.step) .. ';' .. int(s.now), 'KEEPTTL')
  end
  if not given.more then
    plan.lifted = released
    return
  end
  local steps, forget = given.more.steps, integer(given.more.forget, 1, 'forget')
  for _, ms in ipairs(steps) do integer(ms, 1, 'penalty') end

  plan.released = released
  function plan.denied_until(s) return s.meters[i].total.ends end

  -- throttled begins the next step at `since`, when a throttle begins.
  function plan.throttled(s, since)
    local m = s.meters[i]
    local state = m.total
    local again = state.step > 0 and since < state.ends + forget
    state.step = again and min(state.step + 1, #steps) or 1
    state.ends = since + steps[state.step]
    call('SET', m.name, int(state.step) .. ';' .. int(state.ends), 'PX',
      int(max(MIN_EXPIRY_MS, state.ends - s.now) + forget))
  end

  -- in_force returns the present step and its end, 0 and 0 without one. The hook fields adds them to a transition.
  function plan.in_force(s)
    local state = s.meters[i].total
    if state.ends <= s.now then return 0, 0 end
    return state.step, state.ends
  end
  also_fields(plan, function(s, entry)
    local step, ends = plan.in_force(s)
    if step == 0 then return end
    entry[#entry + 1] = 'penalty'
    entry[#entry + 1] = int(min(step, #steps)) .. ',' .. int(#steps) .. ',' .. int(ends)
  end)
end
