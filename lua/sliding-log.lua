-- sliding-log.lua: exact and weighted. One stream per key; each entry carries
-- its count and the running total including it, so that the units used in a
-- window are a difference of two totals:
--   used(W) = newest.total - (first.total - first.count)
-- with `first` the first entry inside the window. Two look-ups whatever the
-- length, and one log serves any number of windows.
--
-- When the newest entry has left the longest window, the total starts over and
-- the older entries are trimmed exactly. So `total` is also an upper bound of
-- what any window holds, which spares most keys the second look-up in fold.

local sliding_log = {}
algorithms['sliding-log'] = sliding_log

-- A counter's state is two values, not a table: fold opens one per event, and a
-- table for each costs more than the rest of its Lua.
--   last   ms of the newest entry, 0 where there is none
--   total  the running total, 0 where it starts over
-- open reads them, and gives as a third a bound of what any window can hold.
function sliding_log.open(counter, now, span)
  local e = call('XREVRANGE', counter, '+', '-', 'COUNT', '1')[1]
  if not e then return 0, 0, 0 end
  local last, total = match(e[1], '^%d+') + 0, e[2][4] + 0
  if last <= now - span then return last, 0, 0 end
  return last, total, total
end

-- The functions below take the state `s` that state_of makes (prelude.lua).

-- used gives the units within the last `ms` milliseconds, and the time of the
-- first entry that makes them up.
function sliding_log.used(s, ms)
  if s.total == 0 or s.last <= s.now - ms then return 0, 0 end
  local f = call('XRANGE', s.counter, int(s.now - ms + 1), '+', 'COUNT', '1')[1]
  local total, count = tonumber(f[2][4]), tonumber(f[2][2])
  if not total or not count then error('not a sliding log: ' .. s.counter) end
  return s.total - total + count, tonumber(match(f[1], '^%d+'))
end

-- add writes one entry of `count`, which is text as it came or an integer from
-- int(). `ms` is the event's time and `id` its stream ID (nil for a check: the
-- clock's). An event older than the newest entry is put at that entry's time, as
-- IDs only grow. Returns the new state; its `last` is where the entry was put.
--
-- It is called after the first write, so it may not fail: `open` has proven the
-- type, and where the stream refuses the ID (somebody deleted its newest entry)
-- the server's own ID serves.
function sliding_log.add(counter, rule, last, total, ms, id, count)
  if ms < last then ms = last end
  if ms == last or not id then id = int(ms) .. '-*' end
  local sum, every, reply = total + count, rule.every, nil
  local t = int(sum)
  if total > 0 and every > 0 and ms - ms % every == last - last % every then
    reply = pcall('XADD', counter, id, 'count', count, 'total', t)
  else
    -- The first entry in each stretch of `every` ms keeps house for all of it.
    if total > 0 then
      reply = pcall('XADD', counter, 'MINID', '~', int(ms - rule.span), id, 'count', count, 'total', t)
    else
      reply = pcall('XADD', counter, 'MINID', '=', int(ms), id, 'count', count, 'total', t)
    end
    call('PEXPIRE', counter, int(rule.span + every))
  end
  if reply.err then call('XADD', counter, '*', 'count', count, 'total', t) end
  return ms, sum
end

-- free_at gives the earliest time at which the window of `ms` holds at most n
-- units with no more traffic: when the entry whose total first reaches
-- total - n has left. It is found by narrowing on time, each probe one look-up,
-- in turn by interpolation (a steady key takes two or three) and by halves.
function sliding_log.free_at(s, ms, n)
  local need = s.total - n
  if s.total == 0 or s.last <= s.now - ms then return s.now end
  local probe = s.now - ms + 1
  local low_ms, low_total, high_ms, high_total = probe - 1, nil, s.last, s.total
  local halve = false
  while true do
    local e = call('XRANGE', s.counter, int(probe), '+', 'COUNT', '1')[1]
    local at, count, total = tonumber(match(e[1], '^%d+')), tonumber(e[2][2]), tonumber(e[2][4])
    if total >= need and (total - count < need or not low_total) then
      if not low_total and total - count >= need then return s.now end
      return at + ms
    end
    if total < need then
      low_ms, low_total = at, total
    else
      high_ms, high_total = probe - 1, total - count
    end
    if low_ms >= high_ms then return low_ms + ms end
    if halve then
      probe = floor((low_ms + high_ms + 1) / 2)
    else
      probe = low_ms + math.ceil((high_ms - low_ms) * (need - low_total) / (high_total - low_total))
      if probe <= low_ms then probe = low_ms + 1 end
      if probe > high_ms then probe = high_ms end
    end
    halve = not halve
  end
end

-- emptied_at is when the window of any key in this state is empty again.
function sliding_log.emptied_at(s, ms)
  if s.total == 0 or s.last <= s.now - ms then return s.now end
  return s.last + ms
end

function sliding_log.forget(counter) return call('DEL', counter) end
