-- announce.lua: announces that a process runs, and with which rules, and returns all processes that run.
--
-- KEYS   1 processes: name of a process -> "<fingerprint> <since_ms> <until_ms>"
-- ARGV   1 now ('' = TIME)  2 name  3 fingerprint of its rules  4 for how many ms
-- Reply  now, then per process, the caller's too: name, fingerprint, since_ms
--
-- `since_ms` is when the process began to use these rules. After `until_ms` the process
-- counts as ended. A field of another form is foreign and is removed.
--
-- include: library

function operations.announce()
  local now, ttl = clock(), number(4, 1)
  local all = call('HGETALL', KEYS[1])
  local since, gone = now, {}
  local reply = {now}
  for i = 1, #all, 2 do
    local name, rules, from, till = all[i], match(all[i + 1], '^(%x+) (%d+) (%d+)$')
    if name == ARGV[2] then
      if rules == ARGV[3] then since = min(tonumber(from), now) end
    elseif not rules or tonumber(till) < now or tonumber(till) > now + 10 * ttl then
      gone[#gone + 1] = name
    else
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, rules, min(tonumber(from), now)
    end
  end
  -- Write.
  call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ' ' .. int(since) .. ' ' .. int(now + ttl))
  for _, name in ipairs(gone) do call('HDEL', KEYS[1], name) end
  call('PEXPIRE', KEYS[1], int(ttl))
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = ARGV[2], ARGV[3], since
  return reply
end
