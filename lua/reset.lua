-- reset.lua: forgets what a key has spent, and ends its levels.
--
-- KEYS   1 levels  2 due  3 outbox  4.. the counters of the key
-- ARGV   1 now_ms ('' = the server's clock)
-- Reply  how many counters the key had, transitions written

local now = clock()
local prove, _, forget = levels(KEYS[1], KEYS[2], KEYS[3])
local key = user_key(KEYS[4])
prove()
local text = call('HGET', KEYS[1], key)
local had, transitions = call('UNLINK', unpack(KEYS, 4)), 0
if text then transitions = forget(key, text, now) end
return {had, transitions}
