-- quick-fold-sliding-log.lua: the common fold, cheap, as quick-sliding-log.lua is the common
-- check. Events of a key that meet a healthy log and stay below every level are counted here,
-- as fold.lua would. Any others are left untouched, neither acknowledged nor counted, and the
-- caller folds them with fold.lua.
--
-- KEYS   the events of each partition; then the counter of each group, rule by rule. Groups of
--        one counter stand together, in time order, so a counter may stand several times
-- ARGV   1 now_ms ('' = the server's clock)  2 consumer group  3 number of partitions; then per
--        rule: how many groups, span, trim_every_ms, number of windows; per window: ms, lowest
--        level in units; per group: its partition, from 1; count, number of events n, their n
--        IDs, rising. What a group is says fold.lua
-- Reply  numbers of events: folded, already counted; then the groups that were left, from 1
--
-- What is compared here with bounds, and why, is said in prelude.lua and totals.lua.
--
-- include: quick-clock

local call, pcall, match, format, type = redis.call, redis.pcall, string.match, string.format, type
local KEYS, ARGV = KEYS, ARGV

local group, partitions, keys = ARGV[2], ARGV[3] + 0, #KEYS
local reply, r, folded, already_counted = {0, 0}, 3, 0, 0
local k, at = partitions + 1, 4 -- the next counter, value of ARGV
while k <= keys do
  local rule = at
  local span, trim_every, windows = ARGV[at + 1] + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
  local lowest = ARGV[at + 5] + 0
  for w = at + 7, at + 3 + 2 * windows, 2 do
    if ARGV[w] + 0 < lowest then lowest = ARGV[w] + 0 end
  end
  at = at + 4 + 2 * windows
  local previous, last, total, quick
  for k = k, k + ARGV[rule] - 1 do
    local counter, head, n = KEYS[k], at, ARGV[at + 2] + 0
    at = at + 3 + n
    local id, count = ARGV[at - 1], ARGV[head + 1]
    if counter ~= previous then
      previous, last, total, quick = counter, 0, 0, true
      local newest = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
      if newest[1] then
        local fields = newest[1][2]
        last, total = match(newest[1][1], '^%d+') + 0, tonumber(fields[4])
        if fields[5] or not total or total < 1 or total >= 2251799813685248 or total % 1 ~= 0
          or last <= now - span or last > now + 86400000 then quick = false end
      else
        quick = not newest.err
      end
    end

    -- What has been spent at all bounds what a window holds.
    local ms, units = match(id, '^%d+') + 0, count * n
    if quick then
      local clock = last > now and last or now
      if ms > now or ms <= clock - span or n > 1000 then
        quick = false
      elseif total + units >= lowest then
        for w = rule + 4, rule + 2 + 2 * windows, 2 do
          local before, from = total, clock - ARGV[w]
          if last > from then
            local e = call('XRANGE', counter, format('%d', from + 1), '+', 'COUNT', '1')[1]
            local first, sum = tonumber(e[2][2]), tonumber(e[2][4])
            if first and sum and first >= 1 and first <= sum and sum <= total then -- no NaN either
              before = sum - first
            else
              quick = false
              break
            end
          end
          if total - before + units >= ARGV[w + 1] + 0 then
            quick = false
            break
          end
        end
      end
    end

    -- The gate (fold.lua). An events stream that is none is fold.lua's to say.
    local acked
    if quick then
      if n == 1 then
        acked = pcall('XACK', KEYS[ARGV[head] + 0], group, id)
      else
        acked = pcall('XACK', KEYS[ARGV[head] + 0], group, unpack(ARGV, head + 3, at - 1))
      end
      if type(acked) ~= 'number' then quick = false end
    end
    if not quick then
      reply[r], r = k - partitions, r + 1
    else
      already_counted = already_counted + n - acked
    end
    if quick and acked > 0 then
      folded = folded + acked
      if ms <= last then
        ms = last
        id = format('%d-*', ms)
      end
      if acked > 1 then count = format('%d', acked * count) end
      local sum, entry = total + count, nil
      local text = format('%d', sum)
      -- As grow in totals.lua has it: most entries leave the upkeep to another.
      local upkeep = total == 0 or trim_every == 0 or ms - ms % trim_every ~= last - last % trim_every
        or sum % 5000 < sum - total
      if upkeep and total > 0 then
        entry = pcall('XADD', counter, 'MINID', '~', format('%d', ms - span), id, 'count', count, 'total', text)
      else
        entry = pcall('XADD', counter, id, 'count', count, 'total', text)
      end
      if entry.err then -- the stream takes no such ID; see sliding-log.lua
        if not string.find(entry.err, ' ID', 1, true) then error(entry) end
        entry, upkeep = pcall('XADD', counter, '*', 'count', count, 'total', text), true
        if entry.err then
          if not string.find(entry.err, ' ID', 1, true) then error(entry) end
          call('UNLINK', counter)
          call('XADD', counter, id, 'count', count, 'total', text)
        end
      end
      if upkeep then call('PEXPIRE', counter, format('%d', math.max(min_expiry, span + trim_every))) end
      last, total = ms, sum
    end
  end
  k = k + ARGV[rule]
end
reply[1], reply[2] = folded, already_counted
return reply
