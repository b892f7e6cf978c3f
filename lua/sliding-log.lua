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

-- open reads the newest entry. The state it gives (four fields: a fifth would
-- double what the table takes, once per event):
--   counter  its key
--   now      the clock, never below the newest entry
--   last     ms of the newest entry, 0 where there is none
--   total    the running total, 0 where it starts over
function sliding_log.open(counter, now, span)
  local e = call('XREVRANGE', counter, '+', '-', 'COUNT', '1')[1]
  if not e then return {counter = counter, now = now, last = 0, total = 0} end
  local last, total = match(e[1], '^%d+') + 0, e[2][4] + 0
  if last > now then now = last end
  if last <= now - span then total = 0 end
  return {counter = counter, now = now, last = last, total = total}
end

-- bound is a cheap upper bound of what any window holds.
function sliding_log.bound(s) return s.total end

-- used gives the units within the last `ms` milliseconds, and the time of the
-- first entry that makes them up.
function sliding_log.used(s, ms)
  if s.total == 0 or s.last <= s.now - ms then return 0, 0 end
  local f = call('XRANGE', s.counter, int(s.now - ms + 1), '+', 'COUNT', '1')[1]
  local total, count = tonumber(f[2][4]), tonumber(f[2][2])
  if not total or not count then error('not a sliding log: ' .. s.counter) end
  return s.total - total + count, tonumber(match(f[1], '^%d+'))
end

-- add writes one entry. `ms` is the event's time and `id` its stream ID (nil
-- for a check: the clock's). An event older than the newest entry is put at
-- that entry's time, as IDs only grow. Returns the time it was put at.
--
-- It is called after the first write, so it may not fail: `open` has proven the
-- type, and where the stream refuses the ID (somebody deleted its newest entry)
-- the server's own ID serves.
function sliding_log.add(s, rule, ms, id, count)
  if ms < s.last then ms = s.last end
  if ms == s.last or not id then id = int(ms) .. '-*' end
  local total, every = s.total + count, rule.every
  local c, t = count == 1 and '1' or int(count), int(total)
  -- The first entry in each stretch of `every` ms keeps house for all of it.
  local tidy = s.total == 0 or every == 0 or floor(ms / every) ~= floor(s.last / every)
  local reply
  if not tidy then
    reply = pcall('XADD', s.counter, id, 'count', c, 'total', t)
  elseif s.total > 0 then
    reply = pcall('XADD', s.counter, 'MINID', '~', int(ms - rule.span), id, 'count', c, 'total', t)
  else
    reply = pcall('XADD', s.counter, 'MINID', '=', int(ms), id, 'count', c, 'total', t)
  end
  if reply.err then call('XADD', s.counter, '*', 'count', c, 'total', t) end
  if tidy then call('PEXPIRE', s.counter, int(rule.span + every)) end
  s.last, s.total = ms, total
  return ms
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
