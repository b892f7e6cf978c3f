-- ring.lua: what a large log of packed.lua takes: records of its ring, and the moves of its
-- buffer into the ring.
--
-- include: prelude, packed

local HINTS = 4
local GIVE_BACK = 10000 -- records that a refund may touch, as a script is to stay short

-- It stands in one function, as most logs are small and a script should not pay for what
-- it does not use.
local function open_rings()
  -- record_of gives the text that has record i of the ring, with those after it up to
  -- a BUFFER of them, and the record's place in it. It is nil where the string ends before.
  local function record_of(log, i)
    local c = log.chunk
    if not c or i < c.from or i >= c.to then
      local place = (log.head + i) % log.size
      local n = math.min(BUFFER, log.ring - i, log.size - place)
      local at = RING + place * RECORD
      local text = call('GETRANGE', log.counter, int(at), int(at + n * RECORD - 1))
      if #text ~= n * RECORD then return nil end
      c = {from = i, to = i + n, text = text}
      log.chunk = c
    end
    return c.text, 1 + (i - c.from) * RECORD, c
  end

  -- find_in_ring gives the first record of the ring whose value (total_at or ms_at) is at
  -- least `least`; `ring` where that stands in the buffer. It looks at `guess` first, and
  -- then in turn where the values say that it must be if they grow evenly, and by halves.
  local function find_in_ring(log, value, least, guess)
    local from, to = 0, log.ring
    local low = value == ms_at and log.base_ms or log.base
    local high = value(log, text_of_log(log), log.at)
    local halve = false
    while from < to do
      guess = math.max(from, math.min(to - 1, guess))
      local text, _, c = record_of(log, guess)
      if not text then return nil end
      local last = c.to - c.from - 1
      local first_value, last_value = value(log, text, 1), value(log, text, 1 + last * RECORD)
      if first_value >= least then
        to, high = math.min(to, c.from), first_value
      elseif last_value < least then
        from, low = math.max(from, c.to), last_value
      else
        return c.from + first_reaching(log, text, 1, 1, last, value, least)
      end
      guess = (from + to) / 2
      if not halve and high > low then guess = from + (to - from) * (least - low) / (high - low) end
      guess, halve = floor(guess) - BUFFER / 2, not halve
    end
    return from
  end

  local function hint_of(log, w)
    if w > HINTS then return log.ring - BUFFER end
    local a, b, c, d = byte(log.text, 22 + w * 4, 25 + w * 4)
    return ((a * 256 + b) * 256 + c) * 256 + d
  end

  -- write_ring replaces a log by one whose ring has these n records, and whose buffer
  -- has one.
  local function write_ring(log, rule, records, n, newest)
    local size = floor(places_for(math.ceil((n + floor(n / 32)) / BUFFER) * BUFFER, RING) / BUFFER) * BUFFER
    local head = -n % BUFFER
    log.at, log.n, log.places = LARGE_HEAD + 1, 1, BUFFER
    log.ring, log.size, log.head, log.stale, log.chunk = n, size, head, true, false
    local begins = head_text('P', log) .. number_text(size, 4) .. number_text(head, 4) .. number_text(n, 4)
    call('SET', log.counter, begins .. rep('\0', 4 * HINTS) .. newest .. rep(NO_RECORD, BUFFER - 1 + head) .. records
      .. rep(NO_RECORD, size - head - n), 'PX', expiry(log.counter, rule.span + rule.setting))
  end

  -- ring_text gives the records of the ring from `from` on.
  local function ring_text(log, from)
    local at, stop = RING + (log.head + from) % log.size * RECORD, RING + (log.head + log.ring) % log.size * RECORD
    if from == log.ring then return '' end
    if at < stop then return call('GETRANGE', log.counter, int(at), int(stop - 1)) end
    local text = call('GETRANGE', log.counter, int(at), int(RING + log.size * RECORD - 1))
    if stop == RING then return text end
    return text .. call('GETRANGE', log.counter, int(RING), int(stop - 1))
  end

  -- move_buffer moves the buffer into the ring, over records that have left every window
  -- at ms; it begins with a new record then, of `sum` at ms.
  local function move_buffer(log, rule, ms, sum)
    local text, from = text_of_log(log), ms - rule.span
    local aged = find_in_ring(log, ms_at, from + 1, 0) or 0
    local buffer = sub(text, log.at, log.at + log.n * RECORD - 1)
    local aged_in_buffer = 0
    if aged == log.ring then
      aged_in_buffer = first_reaching(log, text, log.at, 0, log.n, ms_at, from + 1)
    end
    local live = log.ring - aged
    local n = live + log.n - aged_in_buffer
    local moves = n >= SMALL / 2 and live + log.n <= log.size and log.n == BUFFER and n * 2 >= log.size
    if moves then aged_in_buffer = 0 end -- it moves as a whole: no record may be before base_ms
    local before, place = text, log.at + (aged_in_buffer - 1) * RECORD
    if aged_in_buffer == 0 and aged > 0 then before, place = record_of(log, aged - 1) end
    if before and aged + aged_in_buffer > 0 then
      log.base = total_at(log, before, place)
      log.base_ms = ms_at(log, before, place)
    end
    log.total = math.min(sum, log.base + MOST)
    local newest = text_of_record(log.origin + log.total, ms)
    if n > MOST_RECORDS then -- it counts longer than it should, never shorter
      return call('SETRANGE', log.counter, int(LARGE_HEAD + (log.n - 1) * RECORD), newest)
    end
    if n < SMALL / 2 then
      return write_small(log, rule, ring_text(log, aged) .. sub(buffer, aged_in_buffer * RECORD + 1) .. newest, n + 1)
    end
    if not moves then
      return write_ring(log, rule, ring_text(log, aged) .. sub(buffer, aged_in_buffer * RECORD + 1), n, newest)
    end
    local hints = {}
    for w = 1, HINTS do
      local seen = log.starts and log.starts[w] or hint_of(log, w)
      hints[w] = number_text(math.max(0, seen - aged), 4)
    end
    call('SETRANGE', log.counter, int(RING + (log.head + log.ring) % log.size * RECORD), buffer)
    log.head, log.ring = (log.head + aged) % log.size, live + log.n
    log.n, log.stale, log.chunk = 1, true, false
    call('SETRANGE', log.counter, '0', head_text('P', log) .. number_text(log.size, 4) .. number_text(log.head, 4)
      .. number_text(log.ring, 4) .. table.concat(hints) .. newest .. rep(NO_RECORD, BUFFER - 1))
  end

  -- entry_of gives record i of a log, whether it stands in the ring or after it.
  local function entry_of(log, i)
    if i < log.ring then return record_of(log, i) end
    return text_of_log(log), log.at + (i - log.ring) * RECORD
  end

  -- start_in_ring is start_of (sliding-log-packed.lua) for a window that begins in the ring,
  -- or with the buffer. Where the string ends too early, the window holds all that it can.
  local function start_in_ring(log, from, w)
    local i = find_in_ring(log, ms_at, from + 1, hint_of(log, w) - 1)
    if not i then return {log.base, log.total, log.base_ms} end
    log.starts = log.starts or {}
    log.starts[w] = i
    local before = log.base
    if i > 0 then
      local text, place = record_of(log, i - 1)
      if not text then return {log.base, log.total, log.base_ms} end
      before = total_at(log, text, place)
    end
    local text, place = entry_of(log, i)
    if not text then return {log.base, log.total, log.base_ms} end
    return {before, total_at(log, text, place), ms_at(log, text, place)}
  end

  -- reaching gives the ms of the first record whose total is at least `least`; it is in the
  -- ring, or the buffer begins with it.
  local function reaching(log, least)
    local i = find_in_ring(log, total_at, least, log.chunk and log.chunk.from or 0)
    local text, place = entry_of(log, i or log.ring)
    if not text then return ms_at(log, log.text, log.at) end
    return ms_at(log, text, place)
  end

  -- write_records writes records i, i+1, ... of a log with one total and these times.
  local function write_records(log, i, total, times)
    local parts, at, next_at = {}, nil, nil
    for k, ms in ipairs(times) do
      local here = LARGE_HEAD + (i - log.ring) * RECORD
      if i < log.ring then
        here = RING + (log.head + i) % log.size * RECORD
      elseif log.size == 0 then
        here = SMALL_HEAD + i * RECORD
      end
      if here ~= next_at and next_at then
        call('SETRANGE', log.counter, int(at), table.concat(parts))
        parts, at = {}, nil
      end
      at, next_at, i = at or here, here + RECORD, i + 1
      parts[#parts + 1] = text_of_record(log.origin + total, ms)
    end
    call('SETRANGE', log.counter, int(at), table.concat(parts))
  end

  -- give_back takes n units out of what follows `from`, up to where the total was `before`:
  -- it raises the totals of the last record that is not after `from` and of those that hold
  -- these units. It gives how many units they were, of at most GIVE_BACK records.
  local function give_back(log, from, before, n)
    local i, size, total = 0, log.ring + log.n, before
    local text = text_of_log(log)
    if ms_at(log, text, log.at) <= from then
      i = log.ring + first_reaching(log, text, log.at, 0, log.n, ms_at, from + 1)
    elseif log.ring > 0 then
      i = find_in_ring(log, ms_at, from + 1, 0) or log.ring
    end
    local start, first, times = i, i, {}
    if i > 0 then
      local text, place = entry_of(log, i - 1)
      if text then first, times[1] = i - 1, ms_at(log, text, place) end
    end
    while i < size do
      local text, place = entry_of(log, i)
      local t = text and #times < GIVE_BACK and total_at(log, text, place)
      if not t or t >= before + n then
        if t then total = before + n end
        break
      end
      total, i = t, i + 1
      times[#times + 1] = ms_at(log, text, place)
    end
    if total <= before then return 0 end
    if start == 0 then
      call('SETRANGE', log.counter, '7', number_text((log.origin + total) % TOTAL_MODULO, 6))
    end
    if times[1] then write_records(log, first, total, times) end
    return total - before
  end

  return {start = start_in_ring, reaching = reaching, write = write_ring, move = move_buffer, give_back = give_back}
end
