-- override.lua: sets or removes the override of one key or pattern, and writes the decisions
-- that follow at once. A sweep of the key writes the changes that depend on its counts.
--
-- KEYS   1 levels  2 due  3 outbox  4 overrides  5 audit
-- ARGV   1 now_ms ('' = the server's clock)  2 target  3 the override as JSON, '' removes it  4 by  5 reason
--        6 how many entries of audit to keep, about  7 the time from which its end was computed, '' if it was
--        not computed: if that time differs from the present by more than a second, nothing is changed
-- Reply  now; 1 changed, 0 there was none to remove, -1 its end has passed, -2 it cannot be read, -3 the time
--        from which its end was computed is not the present
--
-- include: library, plan, state, records, levels, freed, overrides

function operations.override()
  -- Validate, and read.
  local now, target, after, keep = clock(), ARGV[2], ARGV[3], number(6, 1)
  prove_types(1)
  call('XLEN', KEYS[5])
  local before = call('HGET', KEYS[4], target) or ''
  local o = read_override(after)
  if after ~= '' and not o then return {now, -2} end
  local past = o and o.till and o.till <= now
  if ARGV[7] ~= '' and (past or math.abs(number(7, 0) - now) > 1000) then return {now, -3} end
  if past then return {now, -1} end
  if after == '' and before == '' then return {now, 0} end
  -- Write.
  write_override(KEYS[4], KEYS[5], keep, now, target, before, after, ARGV[4], ARGV[5])
  mark_freed(KEYS[1])
  follow_override(1, now, target, o, true)
  return {now, 1}
end
