-- lock.lua: takes, keeps or gives back locks, so that only one process at a time does a duty.
--
-- KEYS   locks
-- ARGV   1 name of the caller  2 for how many ms (0 = give them back)
-- Reply  per lock 1 if the caller holds it now
--
-- A lock of another type, without an end, or whose end is later than ten times these ms, is corrupt: nobody holds it.
--
-- include: library

-- is_free returns whether the caller may take a lock, or give it back, and whether the key exists.
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
      -- Redis accepts this first write even if it is out of memory: the relay must go on to empty the outbox.
      call('PEXPIRE', key, int(ms))
      call('SET', key, ARGV[1], 'PX', int(ms))
    elseif there[i] then
      call('DEL', key)
    end
    held[i] = free[i] and ms > 0 and 1 or 0
  end
  return held
end
