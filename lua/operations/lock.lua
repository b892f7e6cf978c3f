-- lock.lua: takes, keeps or gives back locks, so that one process at a time
-- does a duty.
--
-- KEYS   locks
-- ARGV   1 who asks  2 for how many ms (0 = give them back)
-- Reply  per lock 1 if the asker holds it now
--
-- A lock that would never end, or not for long (no end, more than ten times what is
-- asked for), or of another type, is corrupt, and nobody holds it.
--
-- include: library

-- is_free reports whether the asker may take a lock, or give it back, and whether the key is there.
local function is_free(key, ms)
  local holder = pcall('GET', key)
  if holder and holder.err then
    is_wrong_type(holder)
  elseif holder and holder ~= ARGV[1] then
    local left = call('PTTL', key)
    if ms == 0 or left >= 0 and left <= 10 * ms then return false end
  end
  return true, holder and not holder.err
end

function operations.lock()
  -- Validate, read, decide.
  local ms, free, there, held = number(2, 0), {}, {}, {}
  for i, key in ipairs(KEYS) do free[i], there[i] = is_free(key, ms) end
  -- Write.
  for i, key in ipairs(KEYS) do
    if free[i] and ms > 0 then
      -- Redis refuses a script for want of memory at its first write only, and never
      -- at this one: the relay must go on then, as it is what empties the outbox.
      call('PEXPIRE', key, int(ms))
      call('SET', key, ARGV[1], 'PX', int(ms))
    elseif there[i] then
      call('DEL', key)
    end
    held[i] = free[i] and ms > 0 and 1 or 0
  end
  return held
end
