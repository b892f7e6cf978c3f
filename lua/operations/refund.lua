-- refund.lua: gives units of a key back, as if the oldest units that it still holds had never been charged. (Decision
-- 26 explains why the oldest.)
--
-- KEYS   1 levels  2 due  3 outbox  4.. the meters of the key
-- ARGV   1 now_ms ('' = the server's clock)  2 units (0: only the state)  3 its plan (plan.lua)
-- Reply  units given back, at most as many as the longest of the windows that decide holds; now;
--        per window the state of the key (window_states in state.lua)
--
-- include: library, plan, state, reserved, records, levels, freed

-- longest_of returns the longest window that can give units back: of the windows that decide, or of all windows if
-- none decides. A window of slots in flight cannot give units back.
local function longest_of(plan)
  local longest
  for w = 1, plan.decides > 0 and plan.decides or plan.n do
    local meter = plan.meters[plan.meter_of[w]]
    if meter and meter.give_back and (not longest or plan.ms[w] > plan.ms[longest]) then longest = w end
  end
  return longest
end

function operations.refund()
  -- Validate, and read.
  local now, n, plan = clock(), number(2, 0), plan_at(3)
  prove_types(1)
  local s = look_at(open_key(plan, 4, 1, now))
  local key, text, longest = user_key(KEYS[4]), nil, longest_of(plan)
  if plan.decides > 0 then text = call('HGET', KEYS[1], key) end
  if refusal then return refusal end

  -- Write. A level of the key may end earlier now; sweep.lua ends it.
  local refunded = longest and min(n, charged_in(s, longest)) or 0
  if refunded > 0 then
    local r = s.reserved
    refunded = give_back(s, longest, refunded)
    s = look_at(open_key(plan, 4, 1, now))
    if r and not s.reserved then -- the newest entry was removed, and with it the mark
      hold(s, r)
      mark(s)
      s = look_at(open_key(plan, 4, 1, now))
    end
    if text ~= false or plan.n > plan.decides then
      near_level(s, key, text)
      s.refunded = true
      judge(s)
    end
    mark_freed(KEYS[1])
  end
  local reply = {refunded, s.now}
  window_states(reply, 2, s, 0)
  return reply
end
