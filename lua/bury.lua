-- bury.lua: acknowledges events that cannot be counted and keeps each in the
-- dead stream with the reason, so that they never block a partition.
--
-- KEYS   1 events  2 dead
-- ARGV   1 consumer group  2 how many letters to keep, about; then per event: ID, reason, body
-- Reply  how many were buried: those that were still pending

local keep, buried = number(2, 1), 0
if #ARGV % 3 ~= 2 then error('ARGV has ' .. #ARGV .. ' values') end
call('XLEN', KEYS[2])
for i = 3, #ARGV, 3 do
  if call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    local letter = {'XADD', KEYS[2], 'MAXLEN', '~', int(keep), '*', 'event', ARGV[i], 'reason', ARGV[i + 1], 'body', ARGV[i + 2]}
    if refused(pcall(unpack(letter))) then
      renew(KEYS[2])
      call(unpack(letter))
    end
    buried = buried + 1
  end
end
return buried
