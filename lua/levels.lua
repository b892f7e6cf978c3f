-- levels.lua: where each key and window stands, and the transitions that a
-- change of it writes to the outbox, in the same step as the count.
--
-- A record, one field of the levels hash per key, present only while a level
-- is above zero:
--   rule|window_ms,limit,until,moved,pct@since+pct@since|...!window_ms,since,until
--   until   when the top level ends with no more traffic (as last computed)
--   moved   when the window last went up or was renewed: the hold counts from it
--   pct@since  the levels raised, rising, each with the time of its crossing
--   !...    the throttle decision that stands for the key, if any
-- What is no record, word for word and with times that can be, reads as none.
-- A throttle decision is one per key, as its subject is: the window that
-- throttles longest speaks for it, and the key is released when none does.

-- user_key takes the key out of a counter's name, prefix:{partition}:form:key.
local function user_key(counter) return match(counter, '^[^{]*{%d+}:[^:]*:(.*)$') end

-- The rest stands in one function, as most keys are far from any level and a
-- script should not pay for what it does not use:
--   local prove, judge, forget = levels(LEVELS, DUE, OUTBOX)
local function levels(levels, due, outbox)
  -- A subscriber that hears nothing newer lets a key go this long after `until`
  -- and the hold: what the sweeper, the relay and NATS may take in all.
  local GRACE_MS = 5000
  -- No level ends later than this after now: two of the longest windows, and a hold.
  local FAR_MS = 68719476736
  local LONG = string.rep('%d', 17) -- digits that no number of ours has

  -- parse_spec reads a rule's levels:
  --   name;hold;shadow;ms,limit,pct=threshold,pct=threshold,...;ms,...
  local function parse_spec(spec)
    local name, hold, shadow, rest = match(spec, '^([^;]+);(%d+);([01]);(.*)$')
    local p = {name = name, hold = tonumber(hold), shadow = shadow, windows = {}}
    for ms, limit, steps in string.gmatch(rest, '(%d+),(%d+),([^;]+)') do
      local w = {ms = tonumber(ms), limit = tonumber(limit), steps = {}}
      for pct, threshold in string.gmatch(steps, '(%d+)=(%d+)') do
        w.steps[#w.steps + 1] = {pct = tonumber(pct), threshold = tonumber(threshold)}
      end
      p.windows[#p.windows + 1] = w
    end
    return p
  end

  -- parse_record gives the windows by their ms as text: under a number of that size
  -- the embedded Redis's Lua would make a table of as many slots.
  local function parse_record(text, now)
    local none = {windows = {}, list = {}, garbage = text and true}
    if not text or #text > 16384 then return none end -- ours take up to 15 KB
    local rec = {windows = {}, list = {}}
    local past, far = now + DAY, now + FAR_MS -- events can be a little ahead
    local name, at = match(text, '^([a-z0-9-]+)()')
    if not name or #name > 64 or find(text, LONG, at) then return none end
    rec.rule = name
    for from, ms, limit, till, moved, raised, to in string.gmatch(text, '()|(%d+),(%d+),(%d+),(%d+),([%d@+]+)()') do
      local w = {ms = tonumber(ms), limit = tonumber(limit), till = tonumber(till), moved = tonumber(moved), raised = {}}
      local top, stop = 0, 1
      for from, pct, since, to in string.gmatch(raised, '()(%d+)@(%d+)%+?()') do
        pct, since = tonumber(pct), tonumber(since)
        if from ~= stop or pct <= top or pct > 100 or since > past then return none end
        w.raised[#w.raised + 1] = {pct = pct, since = since}
        top, stop = pct, to
      end
      if from ~= at or stop ~= #raised + 1 or top == 0 then return none end
      if w.ms > FAR_MS or w.limit >= 9007199254740992 or w.till > far or w.moved > past then return none end
      rec.windows[ms] = w
      rec.list[#rec.list + 1] = w
      at = to
    end
    if at == #text + 1 then return rec end
    local from, ms, since, till = match(text, '()!(%d+),(%d+),(%d+)$')
    if from ~= at or tonumber(ms) > FAR_MS or tonumber(since) > past or tonumber(till) > far then return none end
    rec.throttle = {ms = tonumber(ms), since = tonumber(since), till = tonumber(till)}
    return rec
  end

  local function format_record(rec)
    local out = {rec.rule}
    for _, w in ipairs(rec.list) do
      local raised = {}
      for i, r in ipairs(w.raised) do raised[i] = int(r.pct) .. '@' .. int(r.since) end
      out[#out + 1] = table.concat({int(w.ms), int(w.limit), int(w.till), int(w.moved), table.concat(raised, '+')}, ',')
    end
    local text = table.concat(out, '|')
    local t = rec.throttle
    if t then text = text .. '!' .. int(t.ms) .. ',' .. int(t.since) .. ',' .. int(t.till) end
    return text
  end

  local function top_of(w) return #w.raised > 0 and w.raised[#w.raised].pct or 0 end

  -- prove reads what is written here, so that a wrong type fails before the first
  -- write; who will judge or forget calls it before that.
  local function prove()
    call('HLEN', levels)
    call('ZCARD', due)
    call('XLEN', outbox)
  end

  -- emit writes one transition.
  local function emit(x, state, level, w, used, since, till, renewal)
    local expires = till
    if state == 'throttled' or state == 'raised' then expires = till + x.hold + GRACE_MS end
    local entry = {'XADD', outbox, '*', 'rule', x.rule, 'key', x.key, 'state', state, 'level', int(level),
      'limit', int(w.limit), 'window', int(w.ms), 'used', int(used), 'at', int(x.now), 'since', int(since),
      'until', int(till), 'expires', int(expires), 'flags', (x.shadow == '1' and 's' or '') .. (renewal and 'r' or '')}
    if refused(pcall(unpack(entry))) then
      renew(outbox)
      call(unpack(entry))
    end
    x.written = x.written + 1
  end

  -- fall clears what is raised above `level` in one window.
  local function fall(x, w, level, used, fell)
    while top_of(w) > level do
      local r = table.remove(w.raised)
      emit(x, 'cleared', r.pct, w, used, fell, fell)
    end
  end

  -- drop ends all that a record says, for a rule or window that is gone or a reset.
  local function drop(x, rec)
    if rec.throttle then
      -- The window that spoke may have fallen before.
      emit(x, 'released', 100, rec.windows[int(rec.throttle.ms)] or {ms = rec.throttle.ms, limit = 0}, 0, x.now, x.now)
      rec.throttle = nil
    end
    for _, w in ipairs(rec.list) do fall(x, w, 0, 0, x.now) end
    rec.list, rec.windows = {}, {}
  end

  -- store writes the record back, or removes it when nothing stands any more.
  local function store(key, rec)
    local keep, at = {}, nil
    for _, w in ipairs(rec.list) do
      if #w.raised > 0 then
        keep[#keep + 1] = w
        local look = math.max(w.till, w.moved + rec.hold)
        if not at or look < at then at = look end
      end
    end
    rec.list = keep
    if at then
      call('HSET', levels, key, format_record(rec))
      call('ZADD', due, int(at), key)
    else
      call('HDEL', levels, key)
      call('ZREM', due, key)
    end
  end

  -- judge compares where a key stands with its record and writes what changed.
  -- It returns how many transitions it wrote, and whether the record was garbage.
  --   c                 the state of its counter after what was added (state_of), and
  --   c.key, c.used     the key, and the units in each window of the rule
  --   c.crossed(w, threshold)  the time of the entry that made window w reach it
  --   c.text            the record as read, false where there is none
  --   c.falling         true in sweep: only there levels go down
  --   c.given           true in refund: levels may end earlier than they were to
  local function judge(c)
    local spec, rec, free_at = parse_spec(c.rule.spec), parse_record(c.text, c.now), c.rule.algo.free_at
    local x = {key = c.key, now = c.now, rule = spec.name, hold = spec.hold, shadow = spec.shadow, written = 0}
    local changed = rec.garbage

    if rec.rule and rec.rule ~= spec.name then
      x.rule = rec.rule
      drop(x, rec)
      x.rule, changed = spec.name, true
    end
    rec.rule, rec.hold = spec.name, spec.hold

    local released_at, list = nil, {}
    for i, w in ipairs(spec.windows) do
      local used = c.used[i]
      local r = rec.windows[int(w.ms)] or {ms = w.ms, till = 0, moved = 0, raised = {}}
      rec.windows[int(w.ms)] = nil
      local moved_limit = r.limit and r.limit ~= w.limit
      r.limit, r.used = w.limit, used
      local stands, reached, threshold = top_of(r), 0, nil
      for _, step in ipairs(w.steps) do
        if used >= step.threshold then
          if step.pct > stands then
            local since = c.crossed(i, step.threshold)
            r.raised[#r.raised + 1] = {pct = step.pct, since = since}
            r.till, r.moved, changed = free_at(c, i, step.threshold - 1), since, true
            emit(x, 'raised', step.pct, r, used, since, r.till)
          end
          reached, threshold = step.pct, step.threshold
        end
      end
      if c.given and stands > 0 then
        r.till, changed = math.min(r.till, reached < stands and c.now or free_at(c, i, threshold - 1)), true
      end
      local ends = math.max(r.till, r.moved + spec.hold)
      if c.falling and stands > 0 and (c.now >= ends or moved_limit) then
        if reached < stands then
          local fell = math.min(ends, c.now)
          if stands == 100 then released_at = fell end
          r.falls, r.fell = reached, fell
          if reached > 0 then r.till = free_at(c, i, threshold - 1) end
          changed = true
        elseif reached == stands then
          r.till, r.moved, changed = free_at(c, i, threshold - 1), c.now, true
        end
      end
      if #r.raised > 0 then list[#list + 1] = r end
    end

    -- Windows that the rule no longer has.
    for _, w in pairs(rec.windows) do
      w.falls, w.fell, w.used, changed = 0, c.now, 0, true
      released_at = released_at or c.now
      list[#list + 1] = w
    end
    if not changed and not c.falling then return 0 end

    -- The throttle decision of the key: the window at the top with the latest end.
    local speaks, old = nil, rec.throttle
    for _, w in ipairs(list) do
      if top_of(w) == 100 and not w.falls and (not speaks or w.till > speaks.till) then speaks = w end
    end
    if speaks and not old then
      local since = speaks.raised[#speaks.raised].since
      emit(x, 'throttled', 100, speaks, speaks.used, since, speaks.till)
      rec.throttle = {ms = speaks.ms, since = since, till = speaks.till}
    elseif speaks and speaks.till > old.till then
      emit(x, 'throttled', 100, speaks, speaks.used, old.since, speaks.till, true)
      rec.throttle = {ms = speaks.ms, since = old.since, till = speaks.till}
    elseif old and not speaks then
      local w = {ms = old.ms, limit = 0}
      for _, l in ipairs(list) do
        if l.ms == old.ms then w = l end
      end
      emit(x, 'released', 100, w, w.used or 0, released_at or c.now, released_at or c.now)
      rec.throttle = nil
    end
    for _, w in ipairs(list) do
      if w.falls then fall(x, w, w.falls, w.used, w.fell) end
    end
    rec.list = list
    store(c.key, rec)
    return x.written, rec.garbage
  end

  -- forget ends all levels of a key for which nothing is counted any more.
  local function forget(key, text, now)
    local rec = parse_record(text, now)
    local x = {key = key, now = now, rule = rec.rule, hold = 0, shadow = '0', written = 0}
    drop(x, rec)
    store(key, rec)
    return x.written, rec.garbage
  end

  return prove, judge, forget
end
