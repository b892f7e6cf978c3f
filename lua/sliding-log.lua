-- sliding-log.lua: exact and weighted. One stream per key, an entry per event
-- with its count and the running total; totals.lua has the arithmetic.
-- The rule's setting is trim_every_ms: how often a log is trimmed and its expiry renewed,
-- 0 at each write. The mark of reservations (prelude.lua) is a field of the newest entry, `reserved`.
--
-- include: prelude, totals

-- read_more reads what the newest entry says of units that were given back, and the mark.
local function read_more(counter, fields)
  if fields[#fields - 1] == 'reserved' then
    marks = marks or {}
    marks[counter] = true
  end
  if fields[5] ~= 'refunded_total' then return end
  local refunded_total, till, longest = tonumber(fields[6]), tonumber(fields[8]), tonumber(fields[10] or nil)
  if refunded_total and till and longest and refunded_total >= 0 and refunded_total < TOP + ERA and longest < TOP then
    refunds[counter], any_refund = {refunded_total, till, longest}, true
  end
end

local function open_log(counter, now, rule)
  local reply = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
  local e = reply[1]
  if not e then
    if reply.err and is_wrong_type(reply) then return discard(counter) end
    return 0, 0, 0
  end
  local last, total = match(e[1], '^%d+') + 0, tonumber(e[2][4])
  if not (total and total >= 0 and total < TOP + ERA and total % 1 == 0 and last <= now + DAY) then
    return discard(counter)
  end
  if e[2][5] then read_more(counter, e[2]) end
  if e[2][2] == '0' then note_newest(counter, '0') end
  if last <= now - rule.span then return last, -total, 0 end
  return last, total, total
end

-- entry_with_more gives the XADD of an entry that tells more than its count and total.
local function entry_with_more(counter, from, id, count, total, refund)
  local entry = {'XADD', counter, 'MINID', '~', from, id, 'count', count, 'total', total}
  local more = refund and {'refunded_total', int(refund[1]), 'until', int(refund[2]), 'window', int(refund[3])} or {}
  if marks and marks[counter] then
    more[#more + 1] = 'reserved'
    more[#more + 1] = '1'
  end
  for _, text in ipairs(more) do entry[#entry + 1] = text end
  return entry
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
  if any_refund and total <= 0 then refunds[counter] = nil end -- the log starts over
  local refund = any_refund and refunds[counter]
  if refund and refund[2] <= ms then refund = nil end
  if refund or marks and marks[counter] then
    if total <= -TRIM then call('UNLINK', counter) end -- perhaps no stream at all
    local from = int(math.max(0, ms - rule.span))
    reply = pcall(unpack(entry_with_more(counter, from, id, count, t, refund)))
    call('PEXPIRE', counter, expiry(counter, rule.span + rule.setting))
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
  if count == '0' or empty_newest then note_newest(counter, count) end
  return ms, sum
end

-- The entry with refunded_total has the newest one's time: nothing was counted since.
local function give_back_of_log(s, w, n)
  local refunded_total, longest = s.total - s.used[w] + n, s.rule.ms[w]
  local entry = entry_with_more(s.counter, '0', next_id(s.last), '0', int(s.total),
    {refunded_total, s.now + longest, longest})
  if refused(pcall(unpack(entry))) then
    recreate(s.counter)
    call(unpack(entry))
    call('PEXPIRE', s.counter, expiry(s.counter, s.rule.span + s.rule.setting))
  end
  note_newest(s.counter, '0')
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
