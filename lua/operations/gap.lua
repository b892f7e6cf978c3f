-- gap.lua: finds events that were trimmed before the group read them.
--
-- KEYS   1 events  2 dead
-- ARGV   1 consumer group  2 how many dead letters to keep, about
-- Reply  how many events were found missing since the last call; -1 where the
--        server does not keep the numbers (before 7.0, miniredis)
--
-- entries-added - length entries have left the stream, entries-read have been
-- read by the group. If more have left than were read, the difference was never
-- read. The group's counter is then moved past them, so that each is found once
-- by whichever worker looks first. A server that was restarted can have lost count: where an event
-- that the group has passed still stands, nothing before it was trimmed unread.
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

function operations.gap()
  -- Validate, and read.
  if call('EXISTS', KEYS[1]) == 0 then return 0 end
  local keep = number(2, 1)
  local s = pairs_of(call('XINFO', 'STREAM', KEYS[1]))
  local added, length = s['entries-added'], s['length']
  if not added then return -1 end
  for _, flat in ipairs(call('XINFO', 'GROUPS', KEYS[1])) do
    local g = pairs_of(flat)
    if g.name == ARGV[1] then
      local read, last = g['entries-read'], g['last-delivered-id']
      if not read then
        if last ~= '0-0' then return 0 end -- the server has lost count, for instance after XGROUP SETID
        read = 0
      end
      local missing = added - length - read
      if missing <= 0 then return 0 end
      local first = s['first-entry']
      if first and not is_after(first[1], last) then return 0 end
      -- Write. XLEN proves the type of the dead stream.
      call('XLEN', KEYS[2])
      call('XGROUP', 'SETID', KEYS[1], ARGV[1], last, 'ENTRIESREAD', int(added - length))
      dead_letter(KEYS[2], keep, last, int(missing) .. ' events were trimmed before they were read', '')
      return missing
    end
  end
  return 0
end
