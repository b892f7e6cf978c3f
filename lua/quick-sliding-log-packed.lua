-- quick-sliding-log-packed.lua: the common check of sliding-log-packed.lua, as
-- quick-sliding-log.lua has it: the same arguments, the same reply, and what is not common
-- is left untouched. A small log takes one read and one write; a large one takes one more
-- read where a window begins in its ring, near where it did when the buffer last moved.
--
-- packed.lua has the form of a log. Its numbers stand here as they are: a record has 11
-- bytes; a small log has up to 21 of them behind a head of 13, a large one 16 behind a head
-- of 41, and its ring begins at 217; times are kept modulo 2^40, totals modulo 2^47.
-- A log that shrinks is left to check.lua.
--
-- include: quick-clock

local call, pcall, byte, char, find, sub, format = redis.call, redis.pcall, string.byte, string.char, string.find,
  string.sub, string.format
local KEYS, rules, counters, keys = KEYS, ARGV[2], ARGV[3], #KEYS
local NO_RECORD = '\255\255\255\255\255\255\255\255\255\255\255'

-- record_at gives the total and the ms of the record at a place of a text.
local function record_at(text, place, base, base_ms)
  local a, b, c, d, e, f, g, h, i, j, k = byte(text, place, place + 10)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f - base) % 140737488355328,
    base_ms + ((((g * 256 + h) * 256 + i) * 256 + j) * 256 + k - base_ms) % 1099511627776
end

-- first_after gives the first of the records from..to - 1 of a text whose ms is after
-- `after`; `to` where none is. Record 0 is at `begin`.
local function first_after(text, begin, from, to, after, base_ms)
  while from < to do
    local middle = from + to
    middle = (middle - middle % 2) / 2
    local place = begin + middle * 11
    local g, h, i, j, k = byte(text, place + 6, place + 10)
    if base_ms + ((((g * 256 + h) * 256 + i) * 256 + j) * 256 + k - base_ms) % 1099511627776 > after then
      to = middle
    else
      from = middle + 1
    end
  end
  return from
end

-- new_ring gives a log whose ring has these records, n of them, and whose buffer has one, as
-- write_ring in ring.lua. Few checks come here, so a function is no more than its definition.
local function new_ring(mark, begins, records, n, newest)
  local length = 217 + math.ceil((n + math.floor(n / 32)) / 16) * 176
  local overhead = length < 65530 and 6 or 10
  local _, exponent = math.frexp(length + overhead)
  local step = 2 ^ (exponent - 3)
  local size = math.ceil((length + overhead) / step) * step - overhead - 217
  size = (size - size % 176) / 11
  local head = -n % 16
  local numbers = {size, head, n}
  for i = 1, 3 do
    local x = numbers[i]
    numbers[i] = char((x - x % 16777216) / 16777216, (x % 16777216 - x % 65536) / 65536,
      (x % 65536 - x % 256) / 256, x % 256)
  end
  return mark .. begins .. table.concat(numbers) .. string.rep('\0', 16) .. newest
    .. string.rep(NO_RECORD, 15 + head) .. records .. string.rep(NO_RECORD, size - head - n)
end

local reply, r = {nil, nil, nil}, 1 -- the next place in reply
local rule, span, trim_every, windows, first_length, first_level -- of the last counter; of its first window
local unfit -- the last counter whose log is not for this script
local quick, first_of_group, begin_of_group, todo, todos = true, 1, 1, nil, 0
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
    windows, first_length = w, ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
    first_level = (((((l1 * 256 + l2) * 256 + l3) * 256 + l4) * 256 + l5) * 256 + l6) * 256 + l7
  end
  if quick then
    quick = false
    local text = pcall('GETRANGE', counter, '0', '243')
    local tag, begin, places, n, last, total, base_ms, base = 112, 14, 0, 0, 0, 0, now, 0
    local size, head, ring = 0, 0, 0
    local first_total, first_ms, fit
    if text == '' then -- a log of no records
      quick = true
    elseif not text.err and #text >= 24 then
      local m1, m2, m3, m4, m5, m6, t1, t2, t3, t4, t5, t6
      tag, m1, m2, m3, m4, m5, m6, t1, t2, t3, t4, t5, t6 = byte(text, 1, 13)
      base_ms = ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
      base = ((((t1 * 256 + t2) * 256 + t3) * 256 + t4) * 256 + t5) * 256 + t6
      if tag == 112 then
        places = (#text - 13) / 11
        quick = places % 1 == 0
      elseif tag == 80 and #text >= 217 then
        local s1, s2, s3, s4, h1, h2, h3, h4, n1, n2, n3, n4 = byte(text, 14, 25)
        size, head = ((s1 * 256 + s2) * 256 + s3) * 256 + s4, ((h1 * 256 + h2) * 256 + h3) * 256 + h4
        ring = ((n1 * 256 + n2) * 256 + n3) * 256 + n4
        begin, places = 42, 16
        quick = size <= 16777216 and ring <= size and head < size and ring > 0
      end
      n = find(text, NO_RECORD, begin, true)
      n = n and (n - begin + 10 - (n - begin + 10) % 11) / 11 or places
      if n > places then n = places end
      if n == 0 then quick = false end
      if quick then
        total, last = record_at(text, begin + n * 11 - 11, base, base_ms)
        first_total, first_ms = record_at(text, begin, base, base_ms)
        if last > now + 86400000 or total > 70368744177664 then
          quick = false
        elseif last <= now - span then -- all has left every window: a new log takes its place
          text, begin, places, n, ring, total, base_ms, base = '', 14, 0, 0, 0, 0, now, 0
        elseif now - base_ms > 549755813888 then
          quick = false
        end
      end
    end

    -- Where each window begins: record i, after `before` and with `with` units. The longest
    -- begins with `aged`; before that the total is aged_total, as text.
    local ms, place, starts = last > now and last or now, r + 1, nil
    local sum, slot, aged, aged_total = total + units, n, 0, nil
    if ms == last then slot = n - 1 end
    if sum > 70368744177664 then quick = false end
    for w = 1, windows do
      if not quick then break end
      local length, level, before, with, first = first_length, first_level, total, nil, ms
      if w > 1 then
        local m1, m2, m3, m4, m5, m6, l1, l2, l3, l4, l5, l6, l7 = byte(rules, rule + w * 13, rule + w * 13 + 12)
        length = ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
        level = (((((l1 * 256 + l2) * 256 + l3) * 256 + l4) * 256 + l5) * 256 + l6) * 256 + l7
      end
      local from, i, part, p = ms - length, ring + n, text, nil
      if last > from then
        if first_ms <= from then
          i = first_after(text, begin, 1, n - 1, from, base_ms)
          p, i = begin + i * 11, ring + i
        elseif ring == 0 then
          before, with, first, i = 0, first_total, first_ms, 0
        else
          -- In the ring: the records from the hint on, 16 of them and up to 48 more.
          local hint = 22 + w * 4
          local h1, h2, h3, h4 = byte(text, hint, hint + 3)
          i = hint < 42 and ((h1 * 256 + h2) * 256 + h3) * 256 + h4 or ring
          if i > 0 then i = i - 1 end
          quick = false
          for _ = 1, 4 do
            local turn, records = (head + i) % size, 16
            if size - turn < records then records = size - turn end
            if ring - i < records then records = ring - i end
            if records < 1 then break end
            part = call('GETRANGE', counter, format('%d', 217 + turn * 11), format('%d', 216 + (turn + records) * 11))
            if #part ~= records * 11 then break end
            -- Mostly little has left the window since: so the first two, and then by halves.
            local k = first_after(part, 1, 0, 1, from, base_ms)
            if k == 1 then k = first_after(part, 1, 1, records < 2 and 1 or 2, from, base_ms) end
            if k == 2 then k = first_after(part, 1, 2, records, from, base_ms) end
            if k < records then
              quick, p, i = k > 0 or i == 0, 1 + k * 11, i + k
              break
            end
            i = i + records - (records > 1 and 1 or 0)
          end
          if not quick then break end
        end
        if p then
          if p > 11 then before = record_at(part, p - 11, base, base_ms) else before = 0 end
          with, first = record_at(part, p, base, base_ms)
          if length == span and p > 11 then aged_total = sub(part, p - 11, p - 6) end
        end
        if with <= before or with > total then quick = false end
        if length == span then aged = i end
      end
      if quick and sum - before >= level then quick, fit = false, true end
      reply[place], reply[place + 1] = sum - before, first
      place = place + 2
      if ring > 0 and slot == 16 then -- the buffer will move
        starts = starts or {}
        starts[#starts + 1] = i
      end
    end

    local write_at, write_text, second_at, second_text, expires = false, false, false, false, false
    if quick then
      local x = (base + sum) % 140737488355328
      local e = x % 16777216
      local b = (x - e) / 16777216
      x = ms % 1099511627776
      local k = x % 65536
      local h = (x - k) / 65536
      local record = char((b - b % 65536) / 65536, (b % 65536 - b % 256) / 256, b % 256,
        (e - e % 65536) / 65536, (e % 65536 - e % 256) / 256, e % 256,
        (h - h % 65536) / 65536, (h % 65536 - h % 256) / 256, h % 256, (k - k % 256) / 256, k % 256)
      if slot >= places and ring == 0 or trim_every == 0 or ms - ms % trim_every ~= last - last % trim_every then
        expires = format('%d', math.max(min_expiry, span + trim_every))
      end
      if slot < places then
        write_at, write_text = format('%d', begin - 1 + slot * 11), record
      elseif ring == 0 then
        -- What has left every window is cut off, and there are more places.
        local count, begins = n - aged + 1, nil
        places = count < 2 and 2 or count < 8 and 8 or count < 15 and 15 or 21
        if n == 0 then
          x = (ms - k) / 65536
          x, e = x % 4294967296, (k - k % 256) / 256
          local y, z = x % 65536, (x - x % 65536) / 65536
          begins = char(112, (z - z % 256) / 256, z % 256, (y - y % 256) / 256, y % 256, e, k % 256, 0, 0, 0, 0, 0, 0)
        else
          begins = sub(text, 1, 7) .. (aged_total or sub(text, 8, 13))
        end
        local records = sub(text, 14 + aged * 11, 13 + n * 11)
        if count <= 21 then
          write_text = begins .. records .. record .. string.rep(NO_RECORD, places - count)
        else
          write_text = new_ring('P', sub(begins, 2), records, count - 1, record)
        end
      else
        -- The buffer moves into the ring, over records that have left every window.
        local live, tail = ring - aged + 16, (head + ring) % size
        quick = aged <= ring and live * 2 >= size and live > 10 and live < 16777216 and tail % 16 == 0
        local begins = sub(text, 2, 7) .. (aged_total or sub(text, 8, 13))
        if quick and live > size then -- there is no room: it grows as a whole
          local from, records = (head + aged) % size, ''
          if aged < ring then
            local to = from < tail and tail or size
            records = call('GETRANGE', counter, format('%d', 217 + from * 11), format('%d', 216 + to * 11))
            if from >= tail and tail > 0 then
              records = records .. call('GETRANGE', counter, '217', format('%d', 216 + tail * 11))
            end
          end
          quick = #records == (ring - aged) * 11
          if quick then write_text = new_ring('P', begins, records .. sub(text, 42, 217), live, record) end
          expires = format('%d', math.max(min_expiry, span + trim_every))
        elseif quick then
          local numbers = {(head + aged) % size, live, 0, 0, 0, 0}
          for w = 1, #starts do
            if w < 5 then numbers[w + 2] = starts[w] - aged end
          end
          for i = 1, 6 do
            x = numbers[i]
            numbers[i] = char((x - x % 16777216) / 16777216, (x % 16777216 - x % 65536) / 65536,
              (x % 65536 - x % 256) / 256, x % 256)
          end
          write_at, write_text = format('%d', 217 + tail * 11), sub(text, 42, 217)
          second_at, second_text = '0', 'P' .. begins .. sub(text, 14, 17)
            .. table.concat(numbers) .. record .. string.rep(NO_RECORD, 15)
        end
      end
    end
    if quick then
      reply[r], r = ms, place
      if more == 1 then -- nothing is written before all of the group is decided
        todo = todo or {}
        todo[todos + 1], todo[todos + 2], todo[todos + 3] = counter, write_at, write_text
        todo[todos + 4], todo[todos + 5], todo[todos + 6] = second_at, second_text, expires
        todos = todos + 6
      else
        for i = 1, todos + 1, 6 do -- those kept, and this one
          local counter, at, text, second_at, second_text, expires =
            counter, write_at, write_text, second_at, second_text, expires
          if i < todos then counter, at, text, second_at, second_text, expires = unpack(todo, i, i + 5) end
          if at then
            call('SETRANGE', counter, at, text)
            if second_at then call('SETRANGE', counter, second_at, second_text) end
            if expires then call('PEXPIRE', counter, expires) end
          else -- a log in the place of the old one
            call('SET', counter, text, 'PX', expires)
          end
        end
      end
    else
      for i = r, place - 1 do reply[i] = nil end
      if not fit then unfit = c end
    end
  end
  if more == 0 then
    if not quick then
      for i = begin_of_group, r - 1 do reply[i] = nil end
      r = begin_of_group
      for i = first_of_group, c do reply[r], r = i == unfit and -1 or 0, r + 1 end
    end
    quick, first_of_group, begin_of_group, todos = true, c + 1, r, 0
  end
end
if r == 4 and keys == 1 then return format('%d %d %d', reply[1], reply[2], reply[3]) end
return reply
