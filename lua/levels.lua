-- levels.lua: the levels that each window of a key has reached, and the transitions that a
-- change of level writes to the outbox, in the same step as the count. records.lua describes the
-- record of a key. Most keys are far from any level, and operations call nothing in this file for them.
--
-- A key has one throttle decision at most. The window that throttles longest determines it, and
-- the key is released when no window throttles it.
--
-- include: library, plan, state, records

-- A subscriber that receives no newer transition stops throttling a key this long after `until`
-- and the hold. It covers the delays of the sweeper, the relay and NATS together.
local GRACE_MS = 5000

-- has_room returns whether a key may spend at least one unit.
local function has_room(s)
  for w = 1, s.plan.decides do
    if s.used[w] >= s.plan.limit[w] then return false end
  end
  return denied_until(s) <= s.now
end

-- near_level marks the state of a key as near a level. judge reads these fields of the state:
--   key       the user's key
--   text      its record in the hash of levels (records.lua); nil: not read yet; false: there is none
--   crossed(s, w, threshold)  returns the time of the entry that made window w reach the threshold; nil: now
--   falling   levels may go down, and a record may pass from one rule to another
--   restate   the throttle decision is published again in any case, with a version above this number
--   refunded  levels may end earlier than the record says
--   was_free  no throttle holds before this call's charges (a sweep may be late), and the plan has the hook throttled
-- `before` is the state before the charges; nil: s is.
local function near_level(s, key, text, before)
  s.near, s.key, s.text, s.crossed, s.falling, s.restate, s.refunded = true, key, text, nil, nil, nil, nil
  s.was_free = s.plan.throttled and has_room(before or s)
end

-- prove_types reads the keys that this file writes, so that a wrong type fails before the
-- first write. Call it before judge and end_levels.
local function prove_types(place)
  call('HLEN', KEYS[place + LEVELS])
  call('ZCARD', KEYS[place + DUE])
  call('XLEN', KEYS[place + OUTBOX])
end

-- about returns x, the context of a key's transitions: place (of the partition), key, field, rule (its name), hold,
-- shadow, in_flight (ms of a window as text -> true if it counts slots in flight), now, rec (the key's record), s (the
-- state of the key, if a rule counts it), and written (how many transitions were written).
local function about(place, key, field, now, rec)
  return {place = place, key = key, field = field, now = now, rec = rec, rule = nil, hold = 0, shadow = false,
          in_flight = {}, s = nil, written = 0, numbered = nil, reason = nil}
end

-- number_transitions makes the versions of x's transitions greater than every version that the key had under x's rule.
local function number_transitions(x)
  if x.numbered == x.rule then return end
  x.numbered = x.rule
  local rec = x.rec
  rec.version = max(rec.version, version_before(x.place, x.field, x.rule))
  -- The last version in a corrupt record is lost. It was below now + 1,000: a key has far fewer transitions per ms.
  if rec.corrupt then rec.version = max(rec.version, x.now + 1000) end
end

-- emit writes one transition. In a renewal, `since` is the time at which the key became throttled.
local function emit(x, state, level, w, used, since, till, renewal)
  local rec, expires, begins = x.rec, till, state == 'throttled' or state == 'raised'
  number_transitions(x)
  rec.version = max(rec.version + 1, renewal and x.now or since)
  if begins then expires = till + x.hold + GRACE_MS end
  local outbox = KEYS[x.place + OUTBOX]
  local entry = {'XADD', outbox, '*', 'rule', x.rule, 'key', x.key, 'state', state, 'level', int(level),
    'limit', int(w.limit), 'window', int(w.ms), 'used', int(used), 'version', int(rec.version), 'at', int(x.now),
    'since', int(since), 'until', int(till), 'expires', int(expires),
    'flags', (x.shadow and 's' or '') .. (renewal and 'r' or '') .. (x.in_flight[int(w.ms)] and 'f' or '')}
  if x.reason then entry[#entry + 1], entry[#entry + 2] = 'reason', x.reason end
  if begins and not x.shadow and x.s and x.s.plan.fields then x.s.plan.fields(x.s, entry) end
  if trace then
    local parent, tracestate = match(trace, '^(%S+) (.*)$')
    entry[#entry + 1], entry[#entry + 2] = 'traceparent', parent
    if tracestate ~= '' then entry[#entry + 1], entry[#entry + 2] = 'tracestate', tracestate end
  end
  append(outbox, entry)
  x.written = x.written + 1
end

local function top_of(w) return #w.raised > 0 and w.raised[#w.raised].pct or 0 end

-- clear ends the levels of a window for which ends(pct) is true, the highest level first.
local function clear(x, w, used, fell, ends)
  local kept = {}
  for i = #w.raised, 1, -1 do
    local r = w.raised[i]
    if ends(r.pct) then emit(x, 'cleared', r.pct, w, used, fell, fell) else table.insert(kept, 1, r) end
  end
  w.raised = kept
end

local function all() return true end

-- end_all ends the throttle decision and all levels of a record, after its rule was removed or for a reset.
local function end_all(x)
  local rec, t = x.rec, x.rec.throttle
  local shadow = find(x.field, '\n', 1, true) and true or false
  if t then shadow = t.shadow end
  x.rule, x.shadow = rec.rule, shadow
  if t then emit(x, 'released', 100, t, 0, x.now, x.now) end
  for _, w in ipairs(rec.list) do clear(x, w, 0, x.now, all) end
  rec.list, rec.by_ms, rec.throttle = {}, {}, nil
end

-- end_levels ends all levels of a record whose rule no longer counts the key. It returns how many transitions it
-- wrote, and whether the record was corrupt.
local function end_levels(place, field, text, now)
  local rec = parse_record(text, now)
  local x = about(place, match(field, '^[^\n]*'), field, now, rec)
  end_all(x)
  store(place, field, rec, 0)
  return x.written, rec.corrupt
end

-- ends_at returns when window w of the key falls below a level if no more traffic comes. A throttle does not end
-- before the time that the hook denied_until returns.
local function ends_at(s, rule, w, pct, threshold)
  local till = free_at(s, w, threshold - 1)
  if pct == 100 and not rule.shadow then till = max(till, denied_until(s)) end
  return till
end

-- throttle_begins returns whether a throttle begins, as a window of the rule is at 100 percent. The record may have
-- the throttle before still, because no sweep has seen its end (was_free). new: the record does not have the level.
local function throttle_begins(s, rule, rec, crossed, new)
  return s.plan.throttled and not rule.shadow and not crossed.throttled and (s.was_free or new and not rec.throttle)
end

-- raise_window adds the levels that a window has reached, and that its record does not have yet, to w and to crossed.
-- w is the window's part of the record. It gets used, reached (the highest level of its use) and its threshold.
local function raise_window(s, rule, rec, w, crossed)
  local place = 1 -- the place of the step in w.raised
  for _, step in ipairs(w.window.steps) do
    while w.raised[place] and w.raised[place].pct < step.pct do place = place + 1 end
    if w.used < step.threshold then break end
    w.reached, w.threshold = step.pct, step.threshold
    local new = not w.raised[place] or w.raised[place].pct > step.pct
    local begins = step.pct == 100 and throttle_begins(s, rule, rec, crossed, new)
    if new or begins then
      local since = s.crossed and s.crossed(s, w.index, step.threshold) or s.now
      if new then table.insert(w.raised, place, {pct = step.pct, since = since}) end
      if begins then
        crossed.throttled = true
        s.plan.throttled(s, since)
      end
      local till = ends_at(s, rule, w.index, step.pct, step.threshold)
      if place == #w.raised then w.till, w.moved = till, since end
      if new then
        crossed[#crossed + 1] = {pct = step.pct, since = since, till = till, used = w.used, window = w.window,
                                 order = #crossed}
      end
    end
  end
end

-- raise adds the levels that the windows of a rule have reached. It returns the windows with a level, and the added
-- levels in the order in which they were crossed. `before` is how many windows of the plan precede the rule's windows.
local function raise(s, rule, rec, before)
  local list, crossed = {}, {}
  for i, window in ipairs(rule.windows) do
    local name = int(window.ms)
    local w = rec.by_ms[name] or {ms = window.ms, limit = window.limit, till = 0, moved = 0, raised = {}}
    rec.by_ms[name] = nil
    w.window, w.index, w.used, w.reached = window, before + i, s.used[before + i], 0
    raise_window(s, rule, rec, w, crossed)
    if #w.raised > 0 then list[#list + 1] = w end
  end
  if #crossed > 1 then
    table.sort(crossed, function(a, b)
      if a.since ~= b.since then return a.since < b.since end
      return a.order < b.order
    end)
  end
  return list, crossed
end

-- lower marks the levels of a window that have ended: falls (pct -> true if that level ends) and fell (when). It
-- renews a level that continues. A changed rule applies at once, whatever `until` and the hold are. (If the use is
-- below a level before its end, a process with another rule has raised it, or the rule now counts something else.) If
-- the rule has lost a percentage, only that level ends.
local function lower(s, rule, w, same_algorithm)
  local window, top = w.window, 0
  for _, r in ipairs(w.raised) do top = window.has[r.pct] and r.pct or top end
  w.falls, w.fell = function(pct) return not window.has[pct] end, s.now
  if top < top_of(w) then w.till = w.reached > 0 and ends_at(s, rule, w.index, w.reached, w.threshold) or s.now end
  local denied = top == 100 and not rule.shadow and denied_until(s) or 0
  local rule_changed = not same_algorithm or w.limit ~= window.limit or w.reached < top and max(s.now, denied) < w.till
  local ends = max(w.till, w.moved + rule.hold)
  if s.now < ends and not rule_changed then return end
  w.limit = window.limit
  w.falls = function(pct) return pct > w.reached or not window.has[pct] end
  w.fell = rule_changed and s.now or min(ends, s.now)
  if w.reached > 0 then w.till = ends_at(s, rule, w.index, w.reached, w.threshold) end
  if w.reached == top and not rule_changed then w.moved = s.now end
end

-- release writes that the key is no longer throttled. `said` is the throttle decision that was published.
local function release(x, said, list, released_at)
  local s, shadow, used = x.s, x.shadow, 0
  for _, w in ipairs(list) do
    if w.ms == said.ms then used, said.limit = w.used, w.limit end
  end
  x.shadow = said.shadow
  emit(x, 'released', 100, said, used, released_at, released_at)
  x.shadow = shadow
  if not shadow and denied_until(s) > s.now then s.plan.released(s) end
end

-- publish_decision writes the throttle decision of the key if it has changed. The window at 100 percent that ends last
-- determines it. If the rule now has another limit, hold or shadow setting, only a sweep publishes the
-- decision again. Otherwise processes with different rules would publish it in turns.
local function publish_decision(x, list)
  local s, rec, said, speaks, released_at = x.s, x.rec, x.rec.throttle, nil, nil
  for _, w in ipairs(list) do
    if top_of(w) == 100 then
      if w.falls and w.falls(100) then
        released_at = w.fell
      elseif not speaks or w.till > speaks.till then
        speaks = w
      end
    end
  end
  if not speaks then
    if said then release(x, said, list, released_at or s.now) end
    rec.throttle = nil
    return
  end
  local since = said and said.since or speaks.raised[#speaks.raised].since
  local new = {ms = speaks.ms, limit = speaks.window and speaks.window.limit or speaks.limit, since = since,
               till = speaks.till, hold = x.hold, shadow = x.shadow}
  local differs = not said or new.till > said.till or s.restate
  if s.falling and not differs then
    for _, name in ipairs({'ms', 'limit', 'till', 'hold', 'shadow'}) do
      differs = differs or new[name] ~= said[name]
    end
  end
  if differs then
    emit(x, 'throttled', 100, new, speaks.used or 0, since, new.till, said and true)
    rec.throttle = new
  end
end

-- move makes the levels of a key end earlier, because units were given back, or at the end of the period that a
-- changed rule has: only a meter by_clock has periods. (lower ends the levels above the use of a period.)
local function move(s, rule, list)
  for _, w in ipairs(list) do
    local m, top = s.meters[s.plan.meter_of[w.index]], top_of(w)
    if s.refunded or m and m.meter.by_clock and w.reached == top then
      local ends = w.reached < top and s.now or free_at(s, w.index, w.threshold - 1)
      if top == 100 and not rule.shadow then ends = max(ends, denied_until(s)) end
      w.till = s.refunded and min(w.till, ends) or ends
    end
  end
end

-- judge_rule compares what a key's windows under one rule hold with the key's record, and writes what changed. It
-- returns how many transitions it wrote, and whether the record was corrupt. text is the record, false: none.
local function judge_rule(s, rule, before, field, text)
  local rec = parse_record(text, s.now)
  local x = about(s.place, s.key, field, s.now, rec)
  x.s, x.hold, rec.version = s, rule.hold, max(rec.version, s.restate or 0)
  if rec.rule and rec.rule ~= rule.name then
    if not s.falling then return 0 end
    end_all(x)
    keep_version(s.place, field, rec.version) -- its rule may have a record in another field too
    if not rule.shadow and denied_until(s) > s.now then s.plan.released(s) end
  end
  local same_algorithm = not rec.rule or rec.algorithm == rule.algorithm
  x.rule, x.shadow, x.in_flight, rec.rule = rule.name, rule.shadow, rule.in_flight, rule.name
  if s.falling or not rec.algorithm then rec.algorithm = rule.algorithm end

  local list, crossed = raise(s, rule, rec, before)
  for _, r in ipairs(crossed) do emit(x, 'raised', r.pct, r.window, r.used, r.since, r.till) end
  local changed = rec.corrupt or #crossed > 0 or crossed.throttled or s.refunded and #list > 0
  if s.refunded or s.falling then move(s, rule, list) end
  if s.falling then
    for _, w in ipairs(list) do lower(s, rule, w, same_algorithm) end
  elseif not changed then
    return 0
  end
  for _, w in pairs(rec.by_ms) do -- windows that the rule no longer has
    if s.falling then w.falls, w.fell, w.used = all, s.now, 0 end
    list[#list + 1] = w
  end
  publish_decision(x, list)
  for _, w in ipairs(list) do
    if w.falls then clear(x, w, w.used, w.fell, w.falls) end
  end
  rec.list = list
  store(x.place, field, rec, rule.hold)
  return x.written, rec.corrupt
end

-- judge calls judge_rule for all rules of a key's plan. s.text is the record of the first rule. Records that were not
-- read yet are read here. This cannot fail, because prove_types has checked the type.
local function judge(s)
  local written, corrupt, before, text = 0, false, 0, s.text
  for _, rule in ipairs(s.plan.rules) do
    local field = field_of(s.key, rule)
    if text == nil then text = call('HGET', KEYS[s.place + LEVELS], field) end
    local n, bad = judge_rule(s, rule, before, field, text)
    written, corrupt, before, text = written + n, corrupt or bad, before + #rule.windows, nil
  end
  return written, corrupt
end
