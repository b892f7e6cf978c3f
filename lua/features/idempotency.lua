-- idempotency.lua: the answers to calls that have a key from their caller (the header Idempotency-Key). A call that is
-- sent again gets the answer of the first one, which was remembered in the same step as the charge.
--
-- KEYS   the last ones: the memory of each such call
-- ARGV   at the place where the check reads it, per call: its number in the run, rising; for how many ms its answer is
--        remembered, 0: not at all (it is only looked for); the fingerprint of its body, without spaces
-- Reply  in the place of `allowed`: 1|0 for a new call; 3|2 for a call that was answered before: the rest is the
--        remembered answer, if the rules have not changed their windows since; 4 if the key was used with another
--        body: nothing was charged
-- A memory is a string: the fingerprint, then the integers of the answer. Any other value of
-- the key is corrupt, counts as no memory, and is replaced.
--
-- include: library

local REMEMBERED, OTHER_BODY = 2, 4

-- answer_of returns the integers of a memory, nil if it is corrupt.
local function answer_of(text)
  local list = {}
  for word in string.gmatch(text, '%S+') do
    local n = tonumber(word)
    if not n or n % 1 ~= 0 or n < -1 or n >= 9007199254740992 then return nil end
    list[#list + 1] = n
  end
  if list[1] ~= 0 and list[1] ~= 1 then return nil end
  return list
end

-- remembered_calls reads n calls with keys. It returns three values: number of a call -> what is known of the call,
-- the next place in ARGV, and where the other KEYS end. What is known of a call:
--   answered           true if it must not be charged: it was answered before, or the key was used
--                      with another body
--   finish(reply, from, to)  remembers the answer at from..to of the reply, where the first value
--                      is `allowed`, or writes the remembered answer there
local function remembered_calls(at, n)
  local known, others = {}, #KEYS - n
  for i = 1, n do
    local name, ttl, fingerprint = KEYS[others + i], number(at + 1, 0), ARGV[at + 2]
    local got, answer, other_body = pcall('GET', name), nil, false
    if type(got) == 'table' and is_wrong_type(got) then got = false end
    if got then
      local print, rest = match(got, '^(%S+) (.*)$')
      answer = print and answer_of(rest)
      other_body = answer and print ~= fingerprint
    end
    known[number(at, 1)] = {
      answered = answer and true,
      finish = function(reply, from, to)
        if other_body then
          reply[from] = OTHER_BODY
        elseif answer then
          if #answer == to - from + 1 then
            for j = 2, #answer do reply[from + j - 1] = answer[j] end
          end
          reply[from] = REMEMBERED + answer[1]
        elseif ttl > 0 then
          local words = {fingerprint}
          for j = from, to do words[j - from + 2] = int(reply[j]) end
          call('SET', name, table.concat(words, ' '), 'PX', int(max(MIN_EXPIRY_MS, ttl)))
        end
      end,
    }
    at = at + 3
  end
  return known, at, others
end
