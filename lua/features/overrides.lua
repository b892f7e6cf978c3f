-- overrides.lua: what an operator has set for a key or a pattern, and the decisions that follow from it.
--
-- A target is a key, or a line feed and a pattern. The hash of overrides has target -> JSON
-- (api.Override), and under "\nversion" a text that differs after each change. Each change is
-- an entry of the audit stream with the versions before and after it. So a process that has
-- one version can follow the entries to the next one, and notices if an entry is missing.
--
-- include: library, plan, state, records, levels, freed

local VERSION = '\nversion'
-- The decision of a block ends after BLOCK_MS and is renewed then. A subscriber that receives
-- no renewal stops blocking the key SLACK_MS later.
local BLOCK_MS, SLACK_MS = 86400000, 3600000

-- read_override returns the fields of an override that the scripts need: block, till, reason; nil
-- if there is no override, or it is corrupt.
local function read_override(text)
  if not text or text == '' then return nil end
  local ok, o = xpcall(function() return cjson.decode(text) end, function() end)
  if not ok or type(o) ~= 'table' then return nil end
  local till = o.until_ms
  local is_time = till == nil or type(till) == 'number' and till >= 0 and till % 1 == 0 and till <= 253402300799999
  if not is_time then return nil end
  return {block = o.block == true, till = till, reason = type(o.reason) == 'string' and o.reason or nil}
end

-- write_override writes an override ('' removes it) and the entry of the audit stream. Types are proven.
local function write_override(overrides, audit, keep, now, target, before, after, by, reason)
  local version = call('HGET', overrides, VERSION) or '0-0'
  local n = tonumber(match(version, '^(%d+)%-')) or 0
  if n >= 4503599627370496 then n = 0 end
  local next_version = int(n + 1) .. '-' .. int(now)
  call('HDEL', overrides, '') -- the first write, which Redis accepts even if it is out of memory
  if after == '' then
    call('HDEL', overrides, target)
  else
    call('HSET', overrides, target, after)
  end
  call('HSET', overrides, VERSION, next_version)
  append(audit, {'XADD', audit, 'MAXLEN', '~', int(keep), '*', 'at', int(now), 'target', target, 'before', before,
    'after', after, 'by', by, 'reason', reason, 'from', version, 'version', next_version})
end

-- decide_block updates the decision of an operator's block of a key, and returns how many transitions
-- it wrote. The decision's record is under the key, a line feed and "override", and has no windows.
-- It exists in addition to the record of the key's rule.
--   block    {till, hold, reason}; nil if the key is not blocked (any more)
--   changed  the block was set again: its decision is published again, if it is a number with a version above it
local function decide_block(place, key, now, block, changed)
  local field = key .. '\noverride'
  local text = call('HGET', KEYS[place + LEVELS], field)
  local rec = parse_record(text, now)
  local x, said = about(place, key, field, now, rec), rec.rule == 'override' and rec.throttle
  x.rule, rec.version = 'override', max(rec.version, tonumber(changed) or 0)
  if not block then
    if said then emit(x, 'released', 100, said, 0, now, now) end
    if text then forget(place, field, rec.version) end
    return x.written
  end
  local till = block.till
  if said and not changed and now < said.till and said.till < till then till = said.till end
  if changed or not said or till ~= said.till then
    local since = said and said.since or now
    local new = {ms = 0, limit = 0, since = since, till = till, hold = block.hold, shadow = false}
    x.hold, x.reason = block.hold, block.reason
    emit(x, 'throttled', 100, new, 0, since, till, said and true)
    rec.rule, rec.algorithm, rec.list, rec.throttle = 'override', 'override', {}, new
    call('HSET', KEYS[place + LEVELS], field, format_record(rec))
  end
  call('ZADD', KEYS[place + DUE], int(till), field)
  return x.written
end

-- follow_override updates the decision, and the time at which the target is next due, after an
-- override (from read_override; nil for none). It returns how many transitions it wrote.
local function follow_override(place, now, target, o, changed)
  local field, written = target .. '\noverride', 0
  if sub(target, 1, 1) ~= '\n' then
    if o and o.block then
      local till, hold = now + BLOCK_MS, SLACK_MS
      if o.till and o.till <= till then till, hold = o.till, 0 end
      return decide_block(place, target, now, {till = till, hold = hold, reason = o.reason}, changed)
    end
    written = decide_block(place, target, now, nil, changed)
  end
  if o and o.till then
    call('ZADD', KEYS[place + DUE], int(o.till), field)
  else
    call('ZREM', KEYS[place + DUE], field)
  end
  return written
end
