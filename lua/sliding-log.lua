-- sliding-log.lua: exact and weighted. One stream per key, an entry per event
-- with its count and the running total; totals.lua has the arithmetic.
-- `tune` is how often a log is trimmed and its expiry renewed, in ms, 0 at each write.

local sliding_log = {}
algorithms['sliding-log'] = sliding_log

function sliding_log.open(counter, now, rule)
  local e = call('XREVRANGE', counter, '+', '-', 'COUNT', '1')[1]
  if not e then return 0, 0, 0 end
  local last, total = match(e[1], '^%d+') + 0, e[2][4] + 0
  if last <= now - rule.span then return last, -total, 0 end
  return last, total, total
end

-- An event older than the newest entry is put at that entry's time, as IDs only
-- grow. Where the stream refuses the ID (somebody deleted its newest entry) the
-- server's own ID serves.
function sliding_log.add(counter, rule, last, total, ms, id, count)
  if ms < last then ms = last end
  if ms == last or not id then id = int(ms) .. '-*' end
  local sum, every, reply = next_total(last, total, ms, count), rule.tune, nil
  local t = int(sum)
  if not is_due(every, last, total, ms, sum) then
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
    call('PEXPIRE', counter, keep_for(rule.span + every))
  end
  if reply.err then call('XADD', counter, '*', 'count', count, 'total', t) end
  return ms, sum
end

sliding_log.used, sliding_log.free_at = running_totals(function(counter, ms)
  local e = call('XRANGE', counter, int(ms), '+', 'COUNT', '1')[1]
  if not e then return nil end
  return tonumber(match(e[1], '^%d+')), tonumber(e[2][2]), tonumber(e[2][4])
end)
