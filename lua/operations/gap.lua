-- gap.lua: finds events that were trimmed before they were counted.
--
-- KEYS   events, dead, levels of each partition
-- ARGV   1 consumer group  2 how many dead letters to keep, about
-- Reply  per partition how many events were found missing since the last call; -1 if the server cannot say (miniredis)
--
-- Each event that was ever added (entries-added) was acknowledged, is pending, is unread, or is missing. The number of
-- missing events is written down, so each is found only once, by the worker that calls first.
--
-- include: library, counted

local MOST_UNREAD = 100 -- more unread events are not counted: a later call finds what is missing

-- unread_after returns how many events follow the one that the group has read last; nil if there are too many.
local function unread_after(events, s, last)
  if last == s['last-generated-id'] then return 0 end
  if #call('XRANGE', events, '-', last, 'COUNT', '1') == 0 then return s.length end
  local unread = #call('XRANGE', events, '(' .. last, '+', 'COUNT', int(MOST_UNREAD + 1))
  return unread <= MOST_UNREAD and unread or nil
end

-- missing_from returns how many events were found missing, how many are missing in all (nil if as many as before), and
-- the IDs of the event that the group has read last, and of the first one that is left.
local function missing_from(events, levels)
  local acked, known = pcall('HGET', levels, ACKED), tonumber(pcall('HGET', levels, MISSING))
  if type(acked) == 'table' and is_wrong_type(acked) or call('EXISTS', events) == 0 then return 0 end
  local s = pairs_of(call('XINFO', 'STREAM', events))
  if not s['entries-added'] then return -1 end
  for _, fields in ipairs(call('XINFO', 'GROUPS', events)) do
    local g = pairs_of(fields)
    if g.name == ARGV[1] then
      local last = g['last-delivered-id']
      local unread = unread_after(events, s, last)
      local lost = unread and s['entries-added'] - unread - g.pending - (tonumber(acked or nil) or 0)
      if not lost or lost == known then return 0 end
      return max(0, lost - (known or last == '0-0' and 0 or lost)), lost, last, (s['first-entry'] or {'none'})[1]
    end
  end
  return 0
end

function operations.gap()
  -- Validate, and read. XLEN proves the type of the dead stream.
  local keep, found, missing, last, first = number(2, 1), {}, {}, {}, {}
  for i = 1, #KEYS / 3 do
    found[i], missing[i], last[i], first[i] = missing_from(KEYS[3 * i - 2], KEYS[3 * i])
    if found[i] > 0 then call('XLEN', KEYS[3 * i - 1]) end
  end
  -- Write.
  for i, n in ipairs(found) do
    if missing[i] then call('HSET', KEYS[3 * i], MISSING, int(missing[i])) end
    if n > 0 then
      dead_letter(KEYS[3 * i - 1], keep, last[i], int(n) .. ' events were trimmed before they were counted; '
        .. 'last one read: ' .. last[i] .. ', first one left: ' .. first[i], '')
    end
  end
  return found
end
