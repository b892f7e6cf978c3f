-- deadletter.lua: takes entries that cannot be counted or published out of their stream and keeps each in the dead
-- stream with the reason, so that they never block a partition.
--
-- KEYS   1 the stream that has the entries  2 dead  3 levels, if they are events
-- ARGV   1 the consumer group that acknowledges events, or '': the entries are deleted
--        2 how many dead letters to keep, about; 0: no letters are written
--        3.. per entry: ID, reason, body; 1 if it is deleted after it was acknowledged, else 0
-- Reply  per entry 1 if it was still there, so that its letter was written, or 0
--
-- include: library, counted

function operations.deadletter()
  -- Validate.
  local group, keep = ARGV[1], number(2, 0)
  if #ARGV % 4 ~= 2 then error('ARGV has ' .. #ARGV .. ' values') end
  if keep > 0 then call('XLEN', KEYS[2]) end -- its type is proven

  -- Write.
  local reply, acked = {}, 0
  for i = 3, #ARGV, 4 do
    local there
    if group == '' then
      there = call('XDEL', KEYS[1], ARGV[i])
    else
      there = call('XACK', KEYS[1], group, ARGV[i])
      acked = acked + there
    end
    if there == 1 and keep > 0 then dead_letter(KEYS[2], keep, ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
    if there == 1 and ARGV[i + 3] == '1' then call('XDEL', KEYS[1], ARGV[i]) end
    reply[#reply + 1] = there
  end
  count_acked(KEYS[3], acked)
  return reply
end
