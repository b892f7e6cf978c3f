-- records.lua: the record that the levels hash has of a key that has reached a level, and the last
-- version of a key that has not.
--
-- A record is one field of the levels hash, present only while a level is above zero. The record of
-- the rule that decides is under the key. The record of each shadow rule is under the key, a line feed
-- and the rule's name. (Keys have no control characters.)
--   rule;algorithm;version|window_ms,limit,until,moved,pct@since+pct@since|...!window_ms,limit,since,until,hold,shadow
--   version    of the key's last transition
--   until      when the window's top level ends if no more traffic comes (as last computed)
--   moved      when the window last went up or was renewed: the hold counts from it
--   pct@since  the levels raised, rising, each with the time of the entry that crossed it
--   !...       the throttle decision that is in force for the key, if any, as it was published
-- A text that does not have exactly this form, or has impossible times, is corrupt and counts as no record.
--
-- Versions number the transitions of a key. They only increase, whatever the clock does, so no two transitions
-- share a message id, and a subscriber knows which of two is newer. A version is the time of the change, or one
-- more than the key's last version if the time is not greater. So a transition that is written again after a
-- failover gets the same version. The last version of a key without a record is in one of 256 fields of the levels
-- hash. Keys with the same hash value share a field, which has the greatest of their versions.
--
-- include: library, plan, state

-- LEVELS, DUE and OUTBOX are the offsets of a partition's names in KEYS, from its place on.
local LEVELS, DUE, OUTBOX = 0, 1, 2

-- No level ends later than this after now: two of the longest windows, and a hold.
local FAR_MS = 68719476736
local LONG = string.rep('%d', 17) -- more digits than any number in a record has
local MAX_VERSION = 4503599627370496 -- 2^52

-- field_of returns the field of a key's record under a rule.
local function field_of(key, rule) return rule.shadow and key .. '\n' .. rule.name or key end

-- parse_windows reads the windows of a record from `at` on. It returns nil if they are corrupt. by_ms has them by
-- their ms as text: with a number as the key, the Lua of the embedded Redis would make a table with that many slots.
local function parse_windows(text, at, past, far)
  local list, by_ms = {}, {}
  local window = '()|(%d+),(%d+),(%d+),(%d+),([%d@+]+)()'
  for from, ms, limit, till, moved, raised, to in string.gmatch(text, window) do
    local w = {ms = tonumber(ms), limit = tonumber(limit), till = tonumber(till), moved = tonumber(moved),
               raised = {}}
    local top, stop = 0, 1
    for from, pct, since, to in string.gmatch(raised, '()(%d+)@(%d+)%+?()') do
      pct, since = tonumber(pct), tonumber(since)
      if from ~= stop or pct <= top or pct > 100 or since > past then return nil end
      w.raised[#w.raised + 1] = {pct = pct, since = since}
      top, stop = pct, to
    end
    if from ~= at or stop ~= #raised + 1 or top == 0 then return nil end
    if w.ms > FAR_MS or w.limit >= 9007199254740992 or w.till > far or w.moved > past then return nil end
    by_ms[ms], list[#list + 1], at = w, w, to
  end
  return list, by_ms, at
end

-- parse_record returns the content of a record: rule, algorithm, version, its windows (list
-- and by_ms), and throttle, the decision. `rule` is nil if there is no record.
local function parse_record(text, now)
  local none = {version = 0, list = {}, by_ms = {}, corrupt = text and true}
  if not text or #text > 16384 then return none end -- a record has up to 15 KB
  local name, algorithm, version, at = match(text, '^([a-z0-9-]+);([a-z0-9:-]+);(%d+)()')
  if not name or #name > 64 or #algorithm > 64 or find(text, LONG, #name + 1) then return none end
  local past, far = now + DAY, now + FAR_MS -- events can be a little ahead
  local rec = {rule = name, algorithm = algorithm, version = tonumber(version)}
  rec.list, rec.by_ms, at = parse_windows(text, at, past, far)
  if not rec.list or rec.version > MAX_VERSION then return none end
  if at == #text + 1 then return rec end
  local from, ms, limit, since, till, hold, shadow = match(text, '()!(%d+),(%d+),(%d+),(%d+),(%d+),([01])$')
  if from ~= at or tonumber(ms) > FAR_MS or tonumber(since) > past or tonumber(till) > far or tonumber(hold) > DAY
    or tonumber(limit) >= 9007199254740992 then return none end
  rec.throttle = {ms = tonumber(ms), limit = tonumber(limit), since = tonumber(since), till = tonumber(till),
                  hold = tonumber(hold), shadow = shadow == '1'}
  return rec
end

local function format_record(rec)
  local out = {rec.rule .. ';' .. rec.algorithm .. ';' .. int(rec.version)}
  for _, w in ipairs(rec.list) do
    local raised = {}
    for i, r in ipairs(w.raised) do raised[i] = int(r.pct) .. '@' .. int(r.since) end
    out[#out + 1] = format('%d,%d,%d,%d,', w.ms, w.limit, w.till, w.moved) .. table.concat(raised, '+')
  end
  local text = table.concat(out, '|')
  local t = rec.throttle
  if not t then return text end
  return text .. format('!%d,%d,%d,%d,%d,%d', t.ms, t.limit, t.since, t.till, t.hold, t.shadow and 1 or 0)
end

-- merged returns the record of a rule, as text, that replaces its records as live and as a shadow. The throttle
-- decision of the later one, if it has any, was published last. Levels of another limit are evaluated at once.
local function merged(text, other, now)
  local rec, old = parse_record(text, now), parse_record(other, now)
  if rec.version < old.version then return merged(other, text, now) end
  for _, w in ipairs(old.list) do
    local known, has = rec.by_ms[int(w.ms)] or w, {}
    if known == w then rec.list[#rec.list + 1] = w end
    if known.limit ~= w.limit then known.limit = 0 end
    for _, r in ipairs(known.raised) do has[r.pct] = true end
    for _, r in ipairs(w.raised) do
      if not has[r.pct] then table.insert(known.raised, r) end
    end
    table.sort(known.raised, function(a, b) return a.pct < b.pct end)
  end
  rec.throttle = rec.throttle or old.throttle
  return rec.rule and format_record(rec) or text or other
end

-- A user's key has no control characters, so no field of a key begins with a line feed.
-- All records of a key share one version field, so a rule that becomes a shadow or live continues its versions.
local function version_field(field) return '\n' .. sub(redis.sha1hex(match(field, '^[^\n]*')), 1, 2) end

local function version(text)
  local n = tonumber(text or nil)
  return n and n % 1 == 0 and n >= 0 and n <= MAX_VERSION and n or 0
end

local function last_version(place, field) return version(call('HGET', KEYS[place + LEVELS], version_field(field))) end

-- twin_version returns the version of the record that the rule has of the key in its other field: as live if it is
-- a shadow, and the reverse. Two records exist from a reload until a sweep merges them.
local function twin_version(place, field, rule)
  local key = match(field, '^[^\n]*')
  local text = call('HGET', KEYS[place + LEVELS], field == key and key .. '\n' .. rule or key)
  local name, n = match(text or '', '^([a-z0-9-]+);[a-z0-9:-]+;(%d+)')
  return name == rule and version(n) or 0
end

-- version_before returns the greatest version that a key may have had under a rule.
local function version_before(place, field, rule)
  return max(last_version(place, field), twin_version(place, field, rule))
end

-- keep_version makes later versions of a key greater than n.
local function keep_version(place, field, n)
  if n > last_version(place, field) then call('HSET', KEYS[place + LEVELS], version_field(field), int(n)) end
end

-- forget removes a record and keeps its version.
local function forget(place, field, n)
  keep_version(place, field, n)
  call('HDEL', KEYS[place + LEVELS], field)
  call('ZREM', KEYS[place + DUE], field)
end

-- drop removes a record and keeps the version in its text.
local function drop(place, field, text) forget(place, field, version(match(text, '^[^;]*;[^;]*;(%d+)'))) end

-- store writes the record back, or removes it if it has no level any more.
local function store(place, field, rec, hold)
  local keep, look_at = {}, nil
  for _, w in ipairs(rec.list) do
    if #w.raised > 0 then
      keep[#keep + 1] = w
      local ends = max(w.till, w.moved + hold)
      if not look_at or ends < look_at then look_at = ends end
    end
  end
  rec.list = keep
  if not look_at then return forget(place, field, rec.version) end
  call('HSET', KEYS[place + LEVELS], field, format_record(rec))
  call('ZADD', KEYS[place + DUE], int(look_at), field)
end
