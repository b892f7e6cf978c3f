-- reset.lua: forgets what a key has spent, and ends its levels.
--
-- KEYS   1 levels  2 due  3 outbox  4 counter
-- ARGV   1 now_ms ('' = the server's clock)  2 algorithm
-- Reply  1 if the key had a counter, transitions written

local algo = algorithms[ARGV[2]]
if not algo then error('unknown algorithm ' .. tostring(ARGV[2])) end
local now, key = clock(), user_key(KEYS[4])
local prove, _, forget = levels()
prove(KEYS[1], KEYS[2], KEYS[3])
local text = call('HGET', KEYS[1], key)
local had, transitions = algo.forget(KEYS[4]), 0
if text then transitions = forget(KEYS[1], KEYS[2], KEYS[3], key, text, now) end
return {had, transitions}
