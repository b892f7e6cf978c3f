-- lock.lua: takes, keeps or gives back a lock, so that one process at a time
-- does a duty.
--
-- KEYS   1 lock
-- ARGV   1 who asks  2 for how many ms (0 = give it back)
-- Reply  1 if the asker holds it now
--
-- A lock that would never end, or not for long (no end, more than ten times what is
-- asked for), or of another type, is corrupt, and nobody holds it.
--
-- include: library

function operations.lock()
  -- Validate, read, decide.
  local holder, ms = pcall('GET', KEYS[1]), number(2, 0)
  if holder and holder.err then
    holder = not is_wrong_type(holder)
  elseif holder and holder ~= ARGV[1] then
    local left = call('PTTL', KEYS[1])
    if ms == 0 or left >= 0 and left <= 10 * ms then return 0 end
  end
  -- Write.
  if ms == 0 then
    if holder then call('DEL', KEYS[1]) end
    return 0
  end
  -- Redis refuses a script for want of memory at its first write only, and never
  -- at this one: the relay must go on then, as it is what empties the outbox.
  call('PEXPIRE', KEYS[1], int(ms))
  call('SET', KEYS[1], ARGV[1], 'PX', int(ms))
  return 1
end
