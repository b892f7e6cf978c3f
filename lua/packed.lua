-- packed.lua: the form of the counters of sliding-log-packed.lua: one string of records,
-- whose length is made in advance so that SETRANGE writes into it in place. (APPEND would
-- make Redis allocate twice what the string holds.)
--
-- A record has 11 bytes, numbers with the high byte first:
--   6 total   the running total including this record, modulo 2^47
--   5 ms      its time, modulo 2^40 (34 years)
-- What came in one ms is one record. A place without a record has the bytes 255.
--
-- A small log, of up to SMALL records:
--   'p'  6 base_ms  6 base_total  records, oldest first  places
-- A large one has its newest records in a buffer behind the head, and the others in a
-- ring that begins after it: record i of the ring stands at place (head + i) % size.
--   'P'  6 base_ms  6 base_total  4 size  4 head  4 n  4 x 4 hints  BUFFER places  size places
-- A log with the mark of reservations (prelude.lua) has 'q' and 'Q' in their place.
-- So the first bytes have the newest record, and a full buffer moves into the ring as a
-- whole, over records that have left every window.
--   base_ms     no record is older
--   base_total  the total before the oldest record
--   n           how many records the ring has; head + n is a multiple of BUFFER, as size is
--   hint w      which record of the log window w began with when the buffer last moved; of
--               the first four windows
--
-- A log as it was read is a table:
--   counter, text (the front of the string), at (where the first record or the buffer begins
--   in it), n (how many records from there), places, total, base_ms, base, origin,
--   ring (how many records it has; 0 for a small log), size, head
-- Its totals are counted from `origin`, the base_total that was read: total is that of the
-- newest record, base is that of base_total. `stale` says that text is older than the rest, by
-- units (true) or by a mark (MARK).
--
-- include: prelude, bytes

local byte, char, rep, sub = string.byte, string.char, string.rep, string.sub

local RECORD, SMALL, BUFFER, MARK = 11, 21, 16, 1
local SMALL_HEAD, LARGE_HEAD = 13, 41
local RING = LARGE_HEAD + BUFFER * RECORD           -- where the ring begins
local FRONT = int(SMALL_HEAD + SMALL * RECORD - 1)  -- one read brings a whole small log
local NO_RECORD = rep('\255', RECORD)
local MS_MODULO, TOTAL_MODULO = 1099511627776, 140737488355328 -- 2^40, 2^47
local MOST = 70368744177664    -- 2^46: a log holds no more units, far above any limit
local MOST_RECORDS = 16777216  -- 2^24, 185 MB; more share the newest record

-- text_of_record gives a record.
local function text_of_record(total, ms)
  total, ms = total % TOTAL_MODULO, ms % MS_MODULO
  local low = total % 16777216
  local high = (total - low) / 16777216
  local b, c, e, f = high % 65536, high % 256, low % 65536, low % 256
  local ms_low = ms % 65536
  local ms_high = (ms - ms_low) / 65536
  local h, i, k = ms_high % 65536, ms_high % 256, ms_low % 256
  return char((high - b) / 65536, (b - c) / 256, c, (low - e) / 65536, (e - f) / 256, f,
    (ms_high - h) / 65536, (h - i) / 256, i, (ms_low - k) / 256, k)
end

-- total_at and ms_at read the record at a place of a text.
local function total_at(log, text, place)
  local a, b, c, d, e, f = byte(text, place, place + 5)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f - log.origin) % TOTAL_MODULO
end
local function ms_at(log, text, place)
  local a, b, c, d, e = byte(text, place + 6, place + 10)
  local base = log.base_ms
  return base + ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e - base) % MS_MODULO
end

-- first_reaching gives which of the records from..to-1 of a text that begins with record 0
-- at `at` is the first whose value (total_at or ms_at) is at least `least`; `to` where none is.
local function first_reaching(log, text, at, from, to, value, least)
  while from < to do
    local middle = from + to
    middle = (middle - middle % 2) / 2
    if value(log, text, at + middle * RECORD) >= least then to = middle else from = middle + 1 end
  end
  return from
end

-- read_packed reads a log; nil where what stands there is none.
local function read_packed(counter, text)
  local tag, m1, m2, m3, m4, m5, m6, t1, t2, t3, t4, t5, t6 = byte(text, 1, SMALL_HEAD)
  local log = {
    counter = counter, text = text, at = SMALL_HEAD + 1, n = 0, places = (#text - SMALL_HEAD) / RECORD, total = 0,
    base_ms = 0, base = 0, origin = 0, ring = 0, size = 0, head = 0, stale = false, chunk = false, mark = false,
  }
  if tag == 113 or tag == 81 then
    tag, log.mark = tag - 1, true
    marks = marks or {}
    marks[counter] = true
  end
  if tag == 80 and #text >= RING then
    local function number_at(i)
      local a, b, c, d = byte(text, i, i + 3)
      return ((a * 256 + b) * 256 + c) * 256 + d
    end
    log.at, log.places = LARGE_HEAD + 1, BUFFER
    log.size, log.head, log.ring = number_at(14), number_at(18), number_at(22)
    if log.size > MOST_RECORDS or log.head >= log.size or log.ring > log.size or log.size % BUFFER ~= 0
      or (log.head + log.ring) % BUFFER ~= 0 then return nil end
  elseif tag ~= 112 or log.places < 1 or log.places % 1 ~= 0 then
    return nil
  end
  log.base_ms = ((((m1 * 256 + m2) * 256 + m3) * 256 + m4) * 256 + m5) * 256 + m6
  log.origin = ((((t1 * 256 + t2) * 256 + t3) * 256 + t4) * 256 + t5) * 256 + t6
  local free = find(text, NO_RECORD, log.at, true)
  log.n = free and math.min(log.places, math.ceil((free - log.at) / RECORD)) or log.places
  if log.n == 0 then return nil end
  log.total = total_at(log, text, log.at + (log.n - 1) * RECORD)
  return log
end

-- text_of_log reads the front of a log anew where records were added since.
local function text_of_log(log)
  if log.stale then log.text, log.stale = call('GETRANGE', log.counter, '0', FRONT), false end
  return log.text
end

-- head_text gives what small and large logs begin with.
local function head_text(tag, log)
  log.mark = marks and marks[log.counter] and true or false
  if log.mark then tag = char(byte(tag) + 1) end
  return tag .. number_text(log.base_ms, 6) .. number_text((log.origin + log.base) % TOTAL_MODULO, 6)
end

-- places_for gives how many records a string may have that has at least so many, behind so
-- many other bytes: as many as fit into what Redis's allocator (jemalloc) gives for it, which
-- is four sizes per power of two.
local function places_for(records, before)
  local length = before + records * RECORD
  local overhead = length < 252 and 4 or length < 65530 and 6 or 10 -- Redis's own, of a string
  local _, exponent = math.frexp(length + overhead)
  local step = math.max(16, 2 ^ (exponent - 3))
  return floor((math.ceil((length + overhead) / step) * step - overhead - before) / RECORD)
end

-- write_small replaces a log by a small one of these records, n of them. It takes up what
-- the allocator gives: 64, 112, 192 or 256 bytes.
local function write_small(log, rule, records, n)
  local places = n < 2 and 2 or n < 8 and 8 or n < 15 and 15 or SMALL
  log.at, log.n, log.places = SMALL_HEAD + 1, n, places
  log.ring, log.size, log.head, log.stale, log.chunk = 0, 0, 0, false, false
  log.text = head_text('p', log) .. records .. rep(NO_RECORD, places - n)
  call('SET', log.counter, log.text, 'PX', expiry(log.counter, rule.span + rule.setting))
end
