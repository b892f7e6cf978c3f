-- deadletter.lua: takes entries that cannot be counted or published out of their stream and keeps each in the dead
-- stream with the reason, so that they never block a partition.
--
-- KEYS   1 the stream that has the entries  2 dead
-- ARGV   1 how they leave it: 'ack' (acknowledged), 'delete', or 'none' (they have left already)
--        2 consumer group, '' if there is none  3 how many dead letters to keep, about
--        4.. per entry: ID, reason, body
-- Reply  per entry 1 if it was still there, so that its letter was written, or 0
--
-- Sending it again writes no second letter, except with 'none'.
--
-- include: library, deadstream

function operations.deadletter()
  -- Validate.
  local how, group, keep = ARGV[1], ARGV[2], number(3, 1)
  if #ARGV % 3 ~= 0 then error('ARGV has ' .. #ARGV .. ' values') end
  if how ~= 'ack' and how ~= 'delete' and how ~= 'none' then error('ARGV[1] is ' .. how) end
  call('XLEN', KEYS[2]) -- its type is proven

  -- Write.
  local reply = {}
  for i = 4, #ARGV, 3 do
    local there = 1
    if how == 'ack' then
      there = call('XACK', KEYS[1], group, ARGV[i])
    elseif how == 'delete' then
      there = call('XDEL', KEYS[1], ARGV[i])
    end
    if there == 1 then dead_letter(KEYS[2], keep, ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
    reply[#reply + 1] = there
  end
  return reply
end
