-- retire.lua: removes consumers that have no pending events. It checks and removes in
-- one step, because removing a consumer with pending events would drop the events.
--
-- KEYS   events of each partition
-- ARGV   1 consumer group  2 a consumer to remove at once ('' = none)
--        3 remove others idle for longer than this, in ms (0 = none)
-- Reply  how many were removed from all partitions
--
-- include: library

local function retire_from(events, consumer, idle_ms)
  local removed = 0
  if call('EXISTS', events) == 0 then return 0 end
  local consumers = pcall('XINFO', 'CONSUMERS', events, ARGV[1])
  if consumers.err then return 0 end -- no such group, so no consumers
  for _, fields in ipairs(consumers) do
    local c = pairs_of(fields)
    local idle = idle_ms > 0 and c.name ~= consumer and c.idle > idle_ms
    if c.pending == 0 and (c.name == consumer or idle) then
      call('XGROUP', 'DELCONSUMER', events, ARGV[1], c.name)
      removed = removed + 1
    end
  end
  return removed
end

function operations.retire()
  local idle_ms, removed = number(3, 0), 0
  for _, events in ipairs(KEYS) do removed = removed + retire_from(events, ARGV[2], idle_ms) end
  return removed
end
