-- gap.lua: finds events that were trimmed before the group read them.
--
-- KEYS   events, dead of each partition
-- ARGV   1 consumer group  2 how many dead letters to keep, about
-- Reply  per partition how many events were found missing since the last call; -1 if
--        the server does not have the numbers (before 7.0, miniredis)
--
-- entries-added - length entries have left the stream, and the group has read entries-read entries. If more have
-- left than were read, the difference was never read. The group's counter is then moved past them, so that each is
-- found only once, by the worker that calls first. A server that was restarted can have lost count. If the stream
-- still has an event that the group has passed, no event before it was trimmed unread.
--
-- include: library, deadstream

local function pairs_of(flat)
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end

-- is_after compares two IDs.
local function is_after(a, b)
  local ms, seq = match(a, '^(%d+)%-(%d+)$')
  local other_ms, other_seq = match(b, '^(%d+)%-(%d+)$')
  if tonumber(ms) ~= tonumber(other_ms) then return tonumber(ms) > tonumber(other_ms) end
  return tonumber(seq) > tonumber(other_seq)
end

-- missing_from returns how many events were trimmed unread, the ID that the group has read last, and how
-- many entries have left the stream.
local function missing_from(events)
  if call('EXISTS', events) == 0 then return 0 end
  local s = pairs_of(call('XINFO', 'STREAM', events))
  local added, length = s['entries-added'], s['length']
  if not added then return -1 end
  for _, flat in ipairs(call('XINFO', 'GROUPS', events)) do
    local g = pairs_of(flat)
    if g.name == ARGV[1] then
      local read, last, first = g['entries-read'], g['last-delivered-id'], s['first-entry']
      if not read then
        if last ~= '0-0' then return 0 end -- the server has lost count, for instance after XGROUP SETID
        read = 0
      end
      local missing = added - length - read
      if missing <= 0 or first and not is_after(first[1], last) then return 0 end
      return missing, last, added - length
    end
  end
  return 0
end

function operations.gap()
  -- Validate, and read. XLEN proves the type of the dead stream.
  local keep, missing, last, left = number(2, 1), {}, {}, {}
  for i = 1, #KEYS / 2 do
    missing[i], last[i], left[i] = missing_from(KEYS[2 * i - 1])
    if missing[i] > 0 then call('XLEN', KEYS[2 * i]) end
  end
  -- Write.
  for i, n in ipairs(missing) do
    if n > 0 then
      call('XGROUP', 'SETID', KEYS[2 * i - 1], ARGV[1], last[i], 'ENTRIESREAD', int(left[i]))
      dead_letter(KEYS[2 * i], keep, last[i], int(n) .. ' events were trimmed before they were read', '')
    end
  end
  return missing
end
