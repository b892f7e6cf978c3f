-- quick-sliding-log.lua: the common check, cheap. Calls that are admitted, whose keys have one rule
-- each, stay below every level and meet healthy logs, take two looks and one entry for each key,
-- and are answered here, to the last field as check.lua would. The counters of a call, and of calls
-- that share one with it, are a group: where one of them is not so, the group is left untouched,
-- and the caller asks check.lua. (Redis runs the whole of a script at each call, each function it
-- defines and each argument it takes: so this one has few.)
--
-- KEYS   the counters, group by group, each once
-- ARGV   1 now_ms ('' = the server's clock)  2 the rules  3 the counters. These are texts of numbers
--        as bytes, the highest first. Per rule: span, trim_every_ms (6 bytes each), number of windows
--        (1); per window: ms (6), and the used units from which on check.lua is asked (7; the lowest
--        level, or above the limit). Per counter: where its rule begins in 2 (3), the units to
--        charge, of all calls (7), and 1 where another counter of its group follows, else 0 (1)
-- Reply  per counter: now; or where its group was left untouched 0, and -1 if its log was the reason,
--        and then nothing more. Per window: units used, and when the first of them came, as a number
--        or as the ID of its entry. (All of them are free once the window has passed: the newest was charged now.)
--        Three values, of one counter, are one text with spaces between: a table takes more.
--
-- What is compared here with bounds, and why, is said in prelude.lua and totals.lua.
--
-- include: quick-clock

local call, pcall, match, format, byte = redis.call, redis.pcall, string.match, string.format, string.byte
local KEYS, tonumber, max = KEYS, tonumber, math.max
local rules, counters, keys = ARGV[2], ARGV[3], #KEYS

local reply, r = {nil, nil, nil}, 1 -- the next place in reply
local rule, span, trim_every, windows, length, level -- of the last counter; of its first window
local quick, first, begin, todo, n = true, 1, 1, nil, 0 -- of the group: its first counter, its reply
local unfit -- the last counter whose log is not for this script
local from_of, from_text, id_of, id -- of the last look and entry: most are of one time
for c = 1, keys do
  local counter = KEYS[c]
  local r1, r2, r3, u1, u2, u3, u4, u5, u6, u7, more = byte(counters, c * 11 - 10, c * 11)
  local units = (((((u1 * 256 + u2) * 256 + u3) * 256 + u4) * 256 + u5) * 256 + u6) * 256 + u7
  local at = (r1 * 256 + r2) * 256 + r3
  if at ~= rule then
    rule = at
    local s1, s2, s3, s4, s5, s6, t1, t2, t3, t4, t5, t6, w, m1, m2, m3, m4, m5, m6, l1, l2, l3, l4, l5, l6, l7 =
      byte(rules, at, at + 25)
    span = ((((s1 * 256 + s2) * 256 + s3) * 256 + s4) * 256 + s5) * 256 + s6
    trim_every = ((((t1 * 256 + t2) * 256 + t3) * 256 + t4) * 256 + t5) * 256 + t6
    windows, length = w, ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
    level = (((((l1 * 256 + l2) * 256 + l3) * 256 + l4) * 256 + l5) * 256 + l6) * 256 + l7
  end
  local last, total, how, ms, sum = 0, 0, '~', now, 0
  if quick then
    local newest = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
    if newest[1] then
      local fields = newest[1][2]
      last, total = match(newest[1][1], '^%d+') + 0, tonumber(fields[4])
      -- A chain with `not` in it is wrong in the embedded Redis's Lua.
      if fields[5] or not total or total < 1 or total >= 2251799813685248 or total % 1 ~= 0
        or last > now + 86400000 or last <= now - span and total >= 10000 then
        quick, unfit = false, c
      elseif last <= now - span then -- all has left every window: the log starts over
        last, total, how = 0, 0, '='
      end
    elseif newest.err then
      quick, unfit = false, c
    end
  end
  if quick then
    if last > now then ms = last end
    sum = total + units
    reply[r], r = ms, r + 1
    for w = 1, windows do
      local length, level, before, since = length, level, total, ms
      if w > 1 then
        local m1, m2, m3, m4, m5, m6, l1, l2, l3, l4, l5, l6, l7 = byte(rules, rule + w * 13, rule + w * 13 + 12)
        length = ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
        level = (((((l1 * 256 + l2) * 256 + l3) * 256 + l4) * 256 + l5) * 256 + l6) * 256 + l7
      end
      local from = ms - length
      if last > from then
        if from ~= from_of then from_of, from_text = from, format('%d', from + 1) end
        local e = call('XRANGE', counter, from_text, '+', 'COUNT', '1')[1]
        local count, sum_then = tonumber(e[2][2]), tonumber(e[2][4])
        if count and sum_then and count >= 1 and count <= sum_then and sum_then <= total then -- no NaN either
          before, since = sum_then - count, e[1]
        else
          quick, unfit = false, c
          break
        end
      end
      if sum - before >= level then
        quick = false
        break
      end
      reply[r], reply[r + 1] = sum - before, since
      r = r + 2
    end
  end
  if quick then
    if ms ~= id_of then id_of, id = ms, format('%d-*', ms) end
    -- As grow in totals.lua has it: most entries leave the upkeep to another.
    local upkeep = total == 0 or trim_every == 0 or ms - ms % trim_every ~= last - last % trim_every
      or sum % 5000 < units
    local oldest, keep = upkeep and total > 0 and format('%d', ms - span), max(min_expiry, span + trim_every)
    if how == '=' then oldest = format('%d', ms) end
    local count, text = units == 1 and '1' or format('%d', units), format('%d', sum)
    if more == 1 then -- nothing is written before all of the group is decided
      todo = todo or {}
      todo[n + 1], todo[n + 2], todo[n + 3], todo[n + 4] = counter, id, count, text
      todo[n + 5], todo[n + 6], todo[n + 7], todo[n + 8], n = oldest, upkeep, keep, how, n + 8
    else
      for i = 1, n + 1, 8 do -- those kept, and this one
        local counter, id, count, text, oldest, upkeep, keep, how = counter, id, count, text, oldest, upkeep, keep, how
        if i < n then counter, id, count, text, oldest, upkeep, keep, how = unpack(todo, i, i + 7) end
        local entry
        if oldest then
          entry = pcall('XADD', counter, 'MINID', how, oldest, id, 'count', count, 'total', text)
        else
          entry = pcall('XADD', counter, id, 'count', count, 'total', text)
        end
        if entry.err then -- the log takes no such ID; see add_to_log in sliding-log.lua
          if not string.find(entry.err, ' ID', 1, true) then error(entry) end
          entry, upkeep = pcall('XADD', counter, '*', 'count', count, 'total', text), true
          if entry.err then
            if not string.find(entry.err, ' ID', 1, true) then error(entry) end
            call('UNLINK', counter)
            call('XADD', counter, id, 'count', count, 'total', text)
          end
        end
        if upkeep then call('PEXPIRE', counter, format('%d', keep)) end
      end
    end
  end
  if more == 0 then
    if not quick then
      for i = begin, r - 1 do reply[i] = nil end
      r = begin
      for i = first, c do reply[r], r = i == unfit and -1 or 0, r + 1 end
    end
    quick, first, begin, n = true, c + 1, r, 0
  end
end
if r == 4 and keys == 1 then return format('%d %d %s', reply[1], reply[2], reply[3]) end
return reply
