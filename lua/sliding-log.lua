-- sliding-log.lua: exact and weighted. One stream per key, an entry per event
-- with its count and the running total; totals.lua has the arithmetic.
-- The rule's setting is trim_every_ms: how often a log is trimmed and its expiry renewed,
-- 0 at each write.
--
-- include: prelude, totals

-- read_refund reads what the newest entry says of units that were given back.
local function read_refund(counter, fields)
  local refunded_total, till, longest = tonumber(fields[6]), tonumber(fields[8]), tonumber(fields[10] or nil)
  if refunded_total and till and longest and refunded_total >= 0 and refunded_total < TOP + ERA and longest < TOP then
    refunds[counter], any_refund = {refunded_total, till, longest}, true
  end
end

local function open_log(counter, now, rule)
  local reply = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
  local e = reply[1]
  if not e then
    if reply.err and is_wrong_type(reply) then return discard() end
    return 0, 0, 0
  end
  local last, total = match(e[1], '^%d+') + 0, tonumber(e[2][4])
  if not (total and total >= 1 and total < TOP + ERA and total % 1 == 0 and last <= now + DAY) then
    return discard()
  end
  if last <= now - rule.span then return last, -total, 0 end
  if e[2][5] then read_refund(counter, e[2]) end
  return last, total, total
end

-- An event older than the newest entry is put at that entry's time, as IDs only
-- grow. Where the stream refuses the ID (somebody deleted its newest entry) the
-- server's own ID serves; where it takes none at all (its last ID is the greatest
-- there is) a new one begins.
local function add_to_log(counter, rule, last, total, ms, id, count)
  if ms < last then ms = last end
  if ms == last or not id then id = next_id(ms) end
  local sum, upkeep = grow(rule.setting, last, total, ms, count)
  local t, reply = int(sum), nil
  local refund = any_refund and total > 0 and refunds[counter]
  if refund and refund[2] > ms then
    reply = pcall('XADD', counter, 'MINID', '~', int(ms - rule.span), id, 'count', count, 'total', t,
      'refunded_total', int(refund[1]), 'until', int(refund[2]), 'window', int(refund[3]))
    call('PEXPIRE', counter, int(math.max(MIN_EXPIRY_MS, rule.span + rule.setting)))
  elseif not upkeep then
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
    call('PEXPIRE', counter, int(math.max(MIN_EXPIRY_MS, rule.span + rule.setting)))
  end
  if refused(reply) and refused(pcall('XADD', counter, '*', 'count', count, 'total', t)) then
    call('UNLINK', counter)
    call('XADD', counter, id, 'count', count, 'total', t)
    call('PEXPIRE', counter, int(math.max(MIN_EXPIRY_MS, rule.span + rule.setting)))
  end
  return ms, sum
end

-- The entry with refunded_total has the newest one's time: nothing was counted since.
local function give_back_of_log(s, w, n)
  local refunded_total, longest = s.total - s.used[w] + n, s.rule.ms[w]
  call('XADD', s.counter, next_id(s.last), 'count', '0', 'total', int(s.total),
    'refunded_total', int(refunded_total), 'until', int(s.now + longest), 'window', int(longest))
  return n
end

local used_of_log, log_free_at = running_totals(function(counter, from)
  local e = call('XRANGE', counter, from, '+', 'COUNT', '1')[1]
  if not e then return end
  local fields = e[2]
  return match(e[1], '^%d+') + 0, tonumber(fields[2]), tonumber(fields[4]), e[1]
end)

algorithms['sliding-log'] = {
  open = open_log, add = add_to_log, used = used_of_log, free_at = log_free_at, give_back = give_back_of_log,
}
