-- reset.lua: removes what a key was charged, and ends its levels.
--
-- KEYS   1 levels  2 due  3 outbox  4.. the counters of the key
-- ARGV   1 now_ms ('' = the server's clock)  2.. the names of shadow rules that the key may have
-- Reply  how many counters the key had, transitions written
--
-- include: prelude, levels, freed

-- Validate, and read.
local now = clock()
local check_types, _, end_levels = levels(KEYS[1], KEYS[2], KEYS[3])
local key = user_key(KEYS[4])
check_types()
local fields, texts = {key}, {}
for i = 2, #ARGV do fields[i] = key .. '\n' .. ARGV[i] end
for i, field in ipairs(fields) do texts[i] = call('HGET', KEYS[1], field) end
-- Write.
local had, transitions = call('UNLINK', unpack(KEYS, 4)), 0
if had > 0 then mark_freed(KEYS[1]) end
for i, field in ipairs(fields) do
  if texts[i] then transitions = transitions + end_levels(field, texts[i], now) end
end
return {had, transitions}
