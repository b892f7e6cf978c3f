-- sliding-log-zset.lua: exact and weighted, on a sorted set. A member per event:
-- its score is the ms, its text the running total in 16 digits, so that members
-- of one ms stand in their order and none comes twice, and the count after it. Behind that
-- the newest has an exclamation mark where it has the mark of reservations (prelude.lua).
-- totals.lua has the arithmetic. The rule's setting is as in sliding-log.lua.
--
-- include: prelude, totals

local zset_log = {}
algorithms['sliding-log-zset'] = zset_log

-- entry_of gives a member's total, count and mark. Without its zeros: the embedded
-- Redis's Lua would read an octal number.
local function entry_of(member) return match(member, '^0*(%d+):(%d+)(!?)$') end

function zset_log.open(counter, now, rule)
  local e = pcall('ZRANGE', counter, '-1', '-1', 'WITHSCORES')
  if not e[1] then
    if e.err and is_wrong_type(e) then return discard(counter) end
    return 0, 0, 0
  end
  local last, total, count, mark = tonumber(e[2]), entry_of(e[1])
  total = tonumber(total or nil)
  if not (last and total and total >= 0 and total < TOP + ERA
    and last >= 0 and last <= now + DAY and last % 1 == 0) then
    return discard(counter)
  end
  if mark == '!' then
    marks = marks or {}
    marks[counter] = true
  end
  if count == '0' then note_newest(counter, '0') end
  if last <= now - rule.span then return last, -total, 0 end
  return last, total, total
end

-- mark_newest writes the newest member again, with the mark or without.
local function mark_newest(counter, rule, mark)
  local newest = call('ZRANGE', counter, '-1', '-1', 'WITHSCORES')
  call('ZREM', counter, newest[1])
  call('ZADD', counter, newest[2], match(newest[1], '^%d+:%d+') .. mark)
  call('PEXPIRE', counter, expiry(counter, rule.span + rule.setting))
end

function zset_log.add(counter, rule, last, total, ms, _, count)
  local mark = marks and marks[counter] and '!' or ''
  if total > 0 and count + 0 == 0 and ms <= last then
    mark_newest(counter, rule, mark)
    return last, total
  end
  if ms < last then ms = last end
  local sum, upkeep = grow(rule.setting, last, total, ms, count)
  if upkeep then
    if total <= 0 then
      if total < 0 then call('UNLINK', counter) end -- freed in the background
    else
      local aged = call('ZCOUNT', counter, '-inf', int(ms - rule.span))
      if aged > 0 then call('ZREMRANGEBYRANK', counter, '0', int(math.min(aged, TRIM) - 1)) end
    end
  end
  call('ZADD', counter, ms_text(ms), format('%016d:%d%s', sum, count + 0, mark))
  if upkeep or mark ~= '' then call('PEXPIRE', counter, expiry(counter, rule.span + rule.setting)) end
  if count == '0' or empty_newest then note_newest(counter, count) end
  return ms, sum
end

-- Here the entries themselves are taken out, the last of them in part; at most
-- TRIM of them, so that the script stays short. The newest stays, for its time, be it
-- with a count of 0. (Of those without units there is one at most for each total.)
function zset_log.give_back(s, w, n)
  local before = s.total - s.used[w] -- the total before the first entry of the window
  local taken = 0
  local from = '(' .. int(s.now - s.rule.ms[w])
  local most = int(math.min(2 * n + 1, TRIM))
  local list = call('ZRANGEBYSCORE', s.counter, from, '+inf', 'WITHSCORES', 'LIMIT', '0', most)
  for i = 1, #list, 2 do
    local member = list[i]
    local total, _, mark = entry_of(member)
    total = tonumber(total or nil)
    if not total or total >= 2 * TOP then break end -- foreign
    while total > s.total do total = total - ERA end -- of before a step back
    local left = math.max(0, total - before - n)
    call('ZREM', s.counter, member)
    if left > 0 or total == s.total then
      call('ZADD', s.counter, 'NX', list[i + 1], format('%s:%d%s', match(member, '^%d+'), left, mark))
    end
    taken = math.min(n, total - before)
    if taken == n then break end
  end
  return math.max(0, taken)
end

zset_log.used, zset_log.free_at = running_totals(function(counter, from)
  local e = call('ZRANGEBYSCORE', counter, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if not e[1] then return end
  local total, count = entry_of(e[1])
  return floor(e[2]), tonumber(count), tonumber(total), e[2]
end)
