-- idempotency.lua: the answers to calls that carry a key of their caller's (the
-- header Idempotency-Key), so that a call which is sent again gets the answer that the
-- first one got, and is charged once. The memory is written in the same step as the charge.
--
-- KEYS   the last ones: the memory of each such call
-- ARGV   at the place where the check reads it, per call: its
--        number in the run, rising; for how many ms its answer is remembered, 0: not at
--        all (it is only looked for); the fingerprint of its body, without spaces
-- Reply  in the place of `allowed`: 1|0 of a call that is new; 3|2 of one that was
--        answered before: the rest of the answer is that one's, where the rules have not changed
--        their windows since; 4 where the key was another body's, and nothing was charged
--
-- A memory is a string: the fingerprint, then the integers of the answer. Any other value of
-- the key is corrupt, counts as no memory, and is replaced.
--
-- include: library

local REMEMBERED, OTHER_BODY = 2, 4

-- answer_of gives the integers of a memory, nil where it is corrupt.
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

-- remembered_calls reads n calls with keys. It gives: number of a call -> what is known of it, the next place in
-- ARGV, and where the other KEYS end. Of a call:
--   answered           true where it may not be charged: it was answered before, or the key is
--                      another body's
--   finish(reply, from, to)  remembers the answer that stands in the reply from..to, the first of
--                      which is `allowed`, or puts the remembered one there
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
