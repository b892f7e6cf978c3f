-- peek.lua: the states of keys, changing nothing.
--
-- KEYS   per key: the hash of levels of its partition; its meters
-- ARGV   1 now_ms ('' = the server's clock); then per key its plan (plan.lua)
-- Reply  per key: now, then per window its state (window_states in state.lua)
--
-- include: library, plan, state, reserved

function operations.peek()
  local now, k, reply, n = clock(), 1, {}, 0
  for at = 2, #ARGV do
    local plan = plan_at(at)
    local s = look_at(open_key(plan, k + 1, k, now))
    k = k + 1 + plan.many
    reply[n + 1] = s.now
    n = window_states(reply, n + 1, s, 0)
  end
  return refusal or reply
end
