-- deadstream.lua: the one function that writes the dead stream. deadletter.lua and gap.lua include it.
--
-- include: library

-- dead_letter adds a letter: the ID of the entry that it is about, the reason, and
-- the entry's body. About `keep` letters are kept. The caller has proven the type of the stream.
local function dead_letter(stream, keep, id, reason, body)
  append(stream, {'XADD', stream, 'MAXLEN', '~', int(keep), '*', 'event', id, 'reason', reason, 'body', body})
end
