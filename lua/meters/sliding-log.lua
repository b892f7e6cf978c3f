-- sliding-log.lua: exact and weighted. One stream per key, with an entry per event that has its count and the running
-- total. totals.lua has the arithmetic. The meter's setting is trim_every_ms: how often a log is trimmed and its
-- expiry renewed, 0 at each write. The mark of holds (reserved.lua) is a field of the newest entry, `reserved`.
--
-- include: library, plan, state, totals

local log = {}
algorithms['sliding-log'] = log

-- read_more reads the fields of the newest entry about units that were given back, and the mark.
local function read_more(m, fields)
  if fields[#fields - 1] == 'reserved' then m.marked = true end
  if fields[5] ~= 'refunded_total' then return end
  local refunded_total, till, longest = tonumber(fields[6]), tonumber(fields[8]), tonumber(fields[10] or nil)
  if refunded_total and till and longest and refunded_total >= 0 and refunded_total < ABOVE_TOP and longest < TOP then
    m.refund = {refunded_total, till, longest}
  end
end

function log.open(m, name, now)
  local reply = pcall('XREVRANGE', name, '+', '-', 'COUNT', '1')
  local e = reply[1]
  if not e then
    if reply.err and is_wrong_type(reply) then return discard(m) end
    return open_totals(m, 0, 0, now)
  end
  local fields = e[2]
  local last, total = match(e[1], '^%d+') + 0, tonumber(fields[4])
  if not (total and total >= 0 and total < ABOVE_TOP and total % 1 == 0 and last <= now + DAY) then
    return discard(m)
  end
  local bound = open_totals(m, last, total, now)
  if fields[5] then read_more(m, fields) end
  if fields[2] == '0' then m.empty = true end
  return bound
end

-- entry_with_more returns the XADD of an entry that has more fields than its count and total. trim is ~, which removes
-- entries before `from` in large steps, or =, which removes all of them.
local function entry_with_more(m, trim, from, id, count, total, refund)
  local entry = {'XADD', m.name, 'MINID', trim, int(from), id, 'count', count, 'total', total}
  local more = refund and {'refunded_total', int(refund[1]), 'until', int(refund[2]), 'window', int(refund[3])} or {}
  if m.marked then
    more[#more + 1] = 'reserved'
    more[#more + 1] = '1'
  end
  for _, text in ipairs(more) do entry[#entry + 1] = text end
  return entry
end

local function expire(m) call('PEXPIRE', m.name, expiry(m, m.span + m.meter.setting)) end

-- An event older than the newest entry gets that entry's time, because IDs only increase. If the stream refuses the
-- ID (somebody deleted its newest entry), the server chooses the ID. If the stream refuses every ID (its last ID is
-- the greatest possible one), or the log starts over, a new stream is begun.
function log.add(m, ms, id, count)
  local name, last, total = m.name, m.last, m.total
  if ms < last then ms = last end
  if ms == last or not id then id = next_id(ms) end
  local sum, upkeep = grow(m, ms, count)
  local t, reply, trim, from = format('%d', sum), nil, '~', ms - m.span
  if total <= 0 then m.refund, trim, from = false, '=', ms end -- the log starts over, without an older entry
  local refund = m.refund
  if refund and refund[2] <= ms then refund = false end
  local more = refund or m.marked
  if not upkeep and not more then
    reply = pcall('XADD', name, id, 'count', count, 'total', t)
  else
    if total == -TOP or total < 0 and ms == last then call('UNLINK', name) end
    if more then -- ~ ends after some 10,000 entries (100 times stream-node-max-entries)
      reply = pcall(unpack(entry_with_more(m, trim, from, id, count, t, refund)))
    else
      reply = pcall('XADD', name, 'MINID', trim, int(from), id, 'count', count, 'total', t)
    end
    expire(m)
  end
  if reply.err and refused(reply) then
    local entry = entry_with_more(m, trim, from, '*', count, t, refund)
    if total <= 0 or refused(pcall(unpack(entry))) then
      call('UNLINK', name)
      entry[6] = id
      call(unpack(entry))
      expire(m)
    end
  end
  m.empty = count == '0'
  m.last, m.total = ms, sum
end

-- The entry with refunded_total gets the newest entry's time, because nothing was counted since.
function log.give_back(m, w, n)
  local longest = m.meter.ms[w]
  local refunded_total = m.total - log.used(m, w) + n
  local entry = entry_with_more(m, '~', 0, next_id(m.last), '0', int(m.total),
    {refunded_total, m.now + longest, longest})
  if refused(pcall(unpack(entry))) then
    recreate(m.name)
    call(unpack(entry))
    expire(m)
  end
  return n
end

log.look, log.used, log.free_at, log.free_times = running_totals(function(name, from)
  local e = call('XRANGE', name, from, '+', 'COUNT', '1')[1]
  if not e then return end
  local fields, count = e[2], e[2][2]
  return match(e[1], '^%d+') + 0, count == '1' and 1 or tonumber(count), tonumber(fields[4]), e[1]
end)
