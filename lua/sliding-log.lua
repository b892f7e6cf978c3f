-- sliding-log.lua: exact and weighted. One stream per key, an entry per event
-- with its count and the running total; totals.lua has the arithmetic.
-- `tune` is how often a log is trimmed and its expiry renewed, in ms, 0 at each write.

local function open_log(counter, now, rule)
  local e = call('XREVRANGE', counter, '+', '-', 'COUNT', '1')[1]
  if not e then return 0, 0, 0 end
  local last, total = match(e[1], '^%d+') + 0, e[2][4] + 0
  if last <= now - rule.span then return last, -total, 0 end
  return last, total, total
end

-- An event older than the newest entry is put at that entry's time, as IDs only
-- grow. Where the stream refuses the ID (somebody deleted its newest entry) the
-- server's own ID serves.
local function add_to_log(counter, rule, last, total, ms, id, count)
  if ms < last then ms = last end
  if ms == last or not id then id = int(ms) .. '-*' end
  local sum, house = grow(rule.tune, last, total, ms, count)
  local t, reply = int(sum), nil
  if not house then
    reply = pcall('XADD', counter, id, 'count', count, 'total', t)
  else
    if total > 0 then -- ~ ends after some 10,000 entries (100 times stream-node-max-entries)
      reply = pcall('XADD', counter, 'MINID', '~', int(ms - rule.span), id, 'count', count, 'total', t)
    elseif total > -TRIM then
      reply = pcall('XADD', counter, 'MINID', '=', int(ms), id, 'count', count, 'total', t)
    else
      call('UNLINK', counter) -- freed in the background
      reply = pcall('XADD', counter, id, 'count', count, 'total', t)
    end
    call('PEXPIRE', counter, int(math.max(LEAST, rule.span + rule.tune)))
  end
  if reply.err then call('XADD', counter, '*', 'count', count, 'total', t) end
  return ms, sum
end

local used_of_log, log_free_at = running_totals(function(counter, ms)
  local e = call('XRANGE', counter, int(ms), '+', 'COUNT', '1')[1]
  local fields = e[2]
  return match(e[1], '^%d+') + 0, fields[2] + 0, fields[4] + 0
end)

algorithms['sliding-log'] = {open = open_log, add = add_to_log, used = used_of_log, free_at = log_free_at}
