-- retire.lua: removes consumers that hold nothing pending, in one step, as
-- removing one that holds events would drop them.
--
-- KEYS   1 events
-- ARGV   1 consumer group  2 a consumer to remove at once ('' = none)
--        3 remove others idle for longer than this, in ms (0 = none)
-- Reply  how many were removed
--
-- include: library

function operations.retire()
  local removed = 0
  if call('EXISTS', KEYS[1]) == 0 then return 0 end
  local consumers = pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
  if consumers.err then return 0 end -- no such group: it holds nobody
  for _, fields in ipairs(consumers) do
    local c = {}
    for i = 1, #fields, 2 do c[fields[i]] = fields[i + 1] end
    local idle = number(3, 0) > 0 and c.name ~= ARGV[2] and c.idle > number(3, 0)
    if c.pending == 0 and (c.name == ARGV[2] or idle) then
      call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c.name)
      removed = removed + 1
    end
  end
  return removed
end
