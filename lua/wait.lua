-- wait.lua: how long until a counter has room, for those scripts that admit or deny.
--
-- include: prelude

-- wait gives how long until s has room for n more units in its windows from..to.
local function wait(s, n, from, to)
  local rule, retry = s.rule, 0
  if from == 1 then retry = math.max(0, penalty_of(s) - s.now) end
  for w = from, to do
    local limit = rule.limit[w]
    if n > limit then return -1 end
    if s.used[w] + n > limit then
      retry = math.max(retry, free_at(s, w, limit - n) - s.now)
    end
  end
  return retry
end
