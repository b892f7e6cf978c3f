-- sliding-log-zset.lua: exact and weighted, on a sorted set with a member per event. Its score is the ms. Its text
-- is the running total in 16 digits, and then the count. So members of one ms are in their order, and no member
-- occurs twice. The newest member ends with an exclamation mark if it has the mark of holds (reserved.lua).
-- totals.lua has the arithmetic. The meter's setting is as in sliding-log.lua.
--
-- include: library, plan, state, totals

local zset = {}
algorithms['sliding-log-zset'] = zset

-- entry_of returns a member's total, count and mark. The total has no leading zeros: with
-- them, the Lua of the embedded Redis would read an octal number.
local function entry_of(member) return match(member, '^0*(%d+):(%d+)(!?)$') end

function zset.open(m, name, now)
  local e = pcall('ZRANGE', name, '-1', '-1', 'WITHSCORES')
  if not e[1] then
    if e.err and is_wrong_type(e) then return discard(m) end
    return open_totals(m, 0, 0, now)
  end
  local last, total, count, mark = tonumber(e[2]), entry_of(e[1])
  total = tonumber(total or nil)
  if not (last and total and total >= 0 and total < ABOVE_TOP
    and last >= 0 and last <= now + DAY and last % 1 == 0) then
    return discard(m)
  end
  local bound = open_totals(m, last, total, now)
  if mark == '!' then m.marked = true end
  if count == '0' then m.empty = true end
  return bound
end

local function expire(m) call('PEXPIRE', m.name, expiry(m, m.span + m.meter.setting)) end

-- mark_newest writes the newest member again, with the mark or without.
local function mark_newest(m, mark)
  local newest = call('ZRANGE', m.name, '-1', '-1', 'WITHSCORES')
  local member = match(newest[1], '^%d+:%d+') .. mark
  call('ZADD', m.name, newest[2], member)
  if member ~= newest[1] then call('ZREM', m.name, newest[1]) end
  expire(m)
end

function zset.add(m, ms, _, count)
  local mark, total = m.marked and '!' or '', m.total
  if total > 0 and count + 0 == 0 and ms <= m.last then return mark_newest(m, mark) end
  if ms < m.last then ms = m.last end
  local sum, upkeep = grow(m, ms, count)
  if total == -TOP or total < 0 and ms == m.last then call('UNLINK', m.name) end
  call('ZADD', m.name, ms_text(ms), format('%016d:%d%s', sum, count + 0, mark))
  if total < 0 then -- the log starts over
    call('ZREMRANGEBYRANK', m.name, '0', '-2')
  elseif upkeep then
    local aged = call('ZCOUNT', m.name, '-inf', int(ms - m.span))
    if aged > 0 then call('ZREMRANGEBYRANK', m.name, '0', int(min(aged, TRIM) - 1)) end
  end
  if upkeep or mark ~= '' then expire(m) end
  m.empty = count == '0'
  m.last, m.total = ms, sum
end

-- Here the entries themselves are removed, the last one in part: at most TRIM, so that the call stays short. The
-- newest entry is kept for its time, even with a count of 0. (Each total has at most one entry without units.)
function zset.give_back(m, w, n)
  local before = m.total - zset.used(m, w) -- the total before the first entry of the window
  local taken = 0
  local from = '(' .. int(m.now - m.meter.ms[w])
  local most = int(min(2 * n + 1, TRIM))
  local list = call('ZRANGEBYSCORE', m.name, from, '+inf', 'WITHSCORES', 'LIMIT', '0', most)
  for i = 1, #list, 2 do
    local member = list[i]
    local total, _, mark = entry_of(member)
    total = tonumber(total or nil)
    if not total or total >= 2 * TOP then break end -- foreign
    while total > m.total do total = total - ERA end -- written before the total was reduced
    local left = max(0, total - before - n)
    local kept = (left > 0 or total == m.total) and format('%s:%d%s', match(member, '^%d+'), left, mark)
    if kept then call('ZADD', m.name, 'NX', list[i + 1], kept) end
    if kept ~= member then call('ZREM', m.name, member) end
    taken = min(n, total - before)
    if taken == n then break end
  end
  return max(0, taken)
end

zset.look, zset.used, zset.free_at, zset.free_times = running_totals(function(name, from)
  local e = call('ZRANGEBYSCORE', name, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if not e[1] then return end
  local total, count = entry_of(e[1])
  return floor(e[2]), tonumber(count), tonumber(total), e[2]
end)
