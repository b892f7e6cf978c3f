-- expire-overrides.lua: checks overrides that may have ended, and blocks whose decision must be renewed.
-- Calling it early, late or twice does no harm.
--
-- KEYS   1 levels  2 due  3 outbox  4 overrides  5 audit
-- ARGV   1 now_ms ('' = the server's clock)  2 how many entries of audit to keep, about
--        3 above 0: the decisions of blocks are published again, with versions above this number
--        then per target: the target; the override of a pattern that applies to it if it has none, as JSON, or ''
-- Reply  transitions written
--
-- include: library, plan, state, records, levels, freed, overrides

operations['expire-overrides'] = function()
  -- Validate, and read.
  local now, keep, again = clock(), number(2, 1), number(3, 0) > 0 and number(3, 0)
  prove_types(1)
  call('XLEN', KEYS[5])
  call('HLEN', KEYS[4])
  -- Write. If it is out of memory, Redis refuses a script only at its first write, and it never refuses this one.
  call('HDEL', KEYS[1], '')
  local transitions = 0
  for i = 4, #ARGV, 2 do
    local target = ARGV[i]
    local text = call('HGET', KEYS[4], target)
    local o = read_override(text)
    if o and o.till and o.till <= now then
      write_override(KEYS[4], KEYS[5], keep, now, target, text, '', '', 'expired')
      mark_freed(KEYS[1])
      o = nil
    end
    o = o or read_override(ARGV[i + 1])
    if o and o.till and o.till <= now then o = nil end
    transitions = transitions + follow_override(1, now, target, o, again)
  end
  return {transitions}
end
