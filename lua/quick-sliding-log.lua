-- quick-sliding-log.lua: the common check, cheap. A check of one key by one rule that is
-- admitted, stays below every level and meets a healthy log takes two looks and
-- one entry, and is answered here, to the last field as check.lua would. Any other is
-- left untouched, and the caller asks check.lua. (Redis runs the whole of a script at
-- each call, each function it defines and each argument it takes: so this one has few.)
--
-- KEYS   the counters, rule by rule, each once
-- ARGV   1 now_ms ('' = the server's clock); then per rule: a text of numbers as bytes, the highest
--        first: how many counters (3 bytes), span, trim_every_ms (6 each), number of windows (1);
--        per window: ms (6), and the used units from which on check.lua is asked (7; the lowest
--        level, or above the limit); per counter: the units to charge, of all calls that ask for it
-- Reply  per counter: now, 0 where it was left untouched, and then nothing more; per
--        window: units used, and when the first of them came, as a number or as the ID of its
--        entry. (All of them are free once the window has passed: the newest was charged now.)
--        Three values, of one counter, are one text with spaces between: a table takes more.
--
-- What is compared here with bounds, and why, is said in prelude.lua and totals.lua.
--
-- include: quick-clock

local call, pcall, match, format, byte = redis.call, redis.pcall, string.match, string.format, string.byte
local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber

local reply, r, c, at = {nil, nil, nil}, 1, 1, 2 -- the next place in reply, counter, value of ARGV
local keys = #KEYS
local from_of, from_text, id_of, id -- of the last look and entry: most are of one time
while c <= keys do
  local rule = ARGV[at]
  local n1, n2, n3, s1, s2, s3, s4, s5, s6, t1, t2, t3, t4, t5, t6, windows = byte(rule, 1, 16)
  local counters = (n1 * 256 + n2) * 256 + n3
  local span = ((((s1 * 256 + s2) * 256 + s3) * 256 + s4) * 256 + s5) * 256 + s6
  local trim_every = ((((t1 * 256 + t2) * 256 + t3) * 256 + t4) * 256 + t5) * 256 + t6
  at = at + 1
  for c = c, c + counters - 1 do
    local counter, units, last, total, quick = KEYS[c], ARGV[at] + 0, 0, 0, true
    at = at + 1
    local newest = pcall('XREVRANGE', counter, '+', '-', 'COUNT', '1')
    if newest[1] then
      local fields = newest[1][2]
      last, total = match(newest[1][1], '^%d+') + 0, tonumber(fields[4])
      -- A chain with `not` in it is wrong in the embedded Redis's Lua.
      if fields[5] or not total or total < 1 or total >= 2251799813685248 or total % 1 ~= 0
        or last <= now - span or last > now + 86400000 then quick = false end
    else
      quick = not newest.err
    end
    if quick then
      local ms = last > now and last or now
      local sum, place = total + units, r + 1
      for w = 17, 4 + 13 * windows, 13 do
        local m1, m2, m3, m4, m5, m6, l1, l2, l3, l4, l5, l6, l7 = byte(rule, w, w + 12)
        local before, first = total, ms
        local from = ms - (((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6)
        if last > from then
          if from ~= from_of then from_of, from_text = from, format('%d', from + 1) end
          local e = call('XRANGE', counter, from_text, '+', 'COUNT', '1')[1]
          local count, sum_then = tonumber(e[2][2]), tonumber(e[2][4])
          if not count or not sum_then or count < 1 or count > sum_then or sum_then > total then
            quick = false
            break
          end
          before, first = sum_then - count, e[1]
        end
        if sum - before >= (((((l1 * 256 + l2) * 256 + l3) * 256 + l4) * 256 + l5) * 256 + l6) * 256 + l7 then
          quick = false
          break
        end
        reply[place], reply[place + 1] = sum - before, first
        place = place + 2
      end
      if quick then
        if ms ~= id_of then id_of, id = ms, format('%d-*', ms) end
        local count, text, entry = ARGV[at - 1], format('%d', sum), nil
        -- As grow in totals.lua has it: most entries leave the upkeep to another.
        if total > 0 and trim_every > 0 and ms - ms % trim_every == last - last % trim_every
          and sum % 5000 >= units then
          entry = pcall('XADD', counter, id, 'count', count, 'total', text)
        else
          if total > 0 then
            entry = pcall('XADD', counter, 'MINID', '~', format('%d', ms - span), id, 'count', count, 'total', text)
          else
            entry = pcall('XADD', counter, id, 'count', count, 'total', text)
          end
          if not entry.err then
            call('PEXPIRE', counter, format('%d', math.max(min_expiry, span + trim_every)))
          end
        end
        if entry.err then
          if not string.find(entry.err, ' ID', 1, true) then error(entry) end
          quick = false
        end
      end
      if quick then
        reply[r], r = ms, place
      else
        for i = r + 1, place - 1 do reply[i] = nil end
      end
    end
    if not quick then reply[r], r = 0, r + 1 end
  end
  c = c + counters
end
if r == 4 and keys == 1 then return format('%d %d %s', reply[1], reply[2], reply[3]) end
return reply
