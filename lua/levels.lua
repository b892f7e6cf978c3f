-- levels.lua: which levels each key and window stands at, and the transitions that a
-- change of them writes to the outbox, in the same step as the count. records.lua has what is
-- remembered of a key.
--
-- A throttle decision is one per key, as its subject is: the window that
-- throttles longest speaks for it, and the key is released when none does.
--
-- include: prelude, records

-- traceparent is the W3C trace context of this run, nil where it is not traced; it goes with the transitions.
local traceparent

-- The rest stands in one function, as most keys are far from any level and a
-- script should not pay for what it does not use:
--   local check_types, judge, end_levels, drop, decide_block = levels(LEVELS, DUE, OUTBOX)
local function levels(levels, due, outbox)
  -- A subscriber that receives nothing newer lets a key go this long after `until`
  -- and the hold: what the sweeper, the relay and NATS may take in all.
  local GRACE_MS = 5000
  local match, find, tonumber = string.match, string.find, tonumber
  local parse_record, format_record, store, forget, drop, version_before = level_records(levels, due)

  -- parse_spec reads a rule's levels:
  --   name;algorithm;hold;shadow|ms,limit,pct=threshold,pct=threshold,...|ms,...
  -- (The spec of a counter has one line per rule.)
  local function parse_spec(text)
    local name, algorithm, hold, shadow, rest = match(text, '^([^;]+);([^;]+);(%d+);([01])(.*)$')
    local spec = {name = name, algorithm = algorithm, hold = tonumber(hold), shadow = shadow, windows = {}}
    for ms, limit, steps in string.gmatch(rest, '|(%d+),(%d+),([^|]+)') do
      local w = {ms = tonumber(ms), limit = tonumber(limit), steps = {}, has = {}}
      for pct, threshold in string.gmatch(steps, '(%d+)=(%d+)') do
        pct = tonumber(pct)
        w.steps[#w.steps + 1] = {pct = pct, threshold = tonumber(threshold)}
        w.has[pct] = true
      end
      spec.windows[#spec.windows + 1] = w
    end
    return spec
  end

  -- check_types reads what is written here, so that a wrong type fails before the first
  -- write; who calls judge or end_levels calls it before that.
  local function check_types()
    call('HLEN', levels)
    call('ZCARD', due)
    call('XLEN', outbox)
  end

  -- emit writes one transition. x says of whom: key, field, rule, hold, shadow, now, and
  -- rec, its record. Of a renewal, `since` is when the key became throttled.
  local function emit(x, state, level, w, used, since, till, renewal)
    local rec, expires = x.rec, till
    if x.versions ~= x.rule then -- the first of this rule here
      x.versions = x.rule
      rec.version = math.max(rec.version, version_before(x.field, x.rule))
      -- A corrupt record said something lately: far fewer than 1,000 transitions per ms.
      if rec.corrupt then rec.version = math.max(rec.version, x.now + 1000) end
    end
    rec.version = math.max(rec.version + 1, renewal and x.now or since)
    if state == 'throttled' or state == 'raised' then expires = till + x.hold + GRACE_MS end
    local entry = {'XADD', outbox, '*', 'rule', x.rule, 'key', x.key, 'state', state, 'level', int(level),
      'limit', int(w.limit), 'window', int(w.ms), 'used', int(used), 'version', int(rec.version), 'at', int(x.now),
      'since', int(since), 'until', int(till), 'expires', int(expires),
      'flags', (x.shadow == '1' and 's' or '') .. (renewal and 'r' or '')}
    if x.reason then entry[#entry + 1], entry[#entry + 2] = 'reason', x.reason end
    if traceparent then entry[#entry + 1], entry[#entry + 2] = 'traceparent', traceparent end
    if refused(pcall(unpack(entry))) then
      recreate(outbox)
      call(unpack(entry))
    end
    x.written = x.written + 1
  end

  local function top_of(w) return #w.raised > 0 and w.raised[#w.raised].pct or 0 end

  -- clear ends the levels of a window for which `ends` is true, the highest first.
  local function clear(x, w, used, fell, ends)
    local kept = {}
    for i = #w.raised, 1, -1 do
      local r = w.raised[i]
      if ends(r.pct) then emit(x, 'cleared', r.pct, w, used, fell, fell) else table.insert(kept, 1, r) end
    end
    w.raised = kept
  end

  local function all() return true end

  -- end_all ends what a record says, for a rule that is gone or a reset.
  local function end_all(x)
    local rec, t = x.rec, x.rec.throttle
    x.rule, x.shadow = rec.rule, t and t.shadow or find(x.field, '\n', 1, true) and '1' or '0'
    if t then emit(x, 'released', 100, t, 0, x.now, x.now) end
    for _, w in ipairs(rec.list) do clear(x, w, 0, x.now, all) end
    rec.list, rec.by_ms, rec.throttle = {}, {}, nil
  end

  -- ends_at gives when, with no more traffic, a window of the rule falls below a level: a throttle not
  -- before the penalty is over.
  local function ends_at(c, spec, i, pct, threshold)
    local till = free_at(c, i, threshold - 1)
    if pct == 100 and spec.shadow == '0' then till = math.max(till, penalty_of(c)) end
    return till
  end

  -- punish begins the penalty of a throttle that begins, once.
  local function punish(c, spec, rec, since)
    if rec.throttle or c.punished or spec.shadow ~= '0' or not c.rule.algo.penalty then return end
    local part, state = c.rule.algo.penalty(c)
    c.punished = true
    if part then part.algo.start(state.counter, part, c.now, state.total, since) end
  end

  -- raise adds the levels that the windows of the rule have reached and do not stand at.
  -- It gives them in the order in which they were crossed, and the windows with a
  -- level, each with used, reached (the highest level that its use reaches) and threshold.
  -- `before` is how many windows of the counter stand before the rule's.
  local function raise(c, spec, rec, before)
    local list, crossed = {}, {}
    for i, window in ipairs(spec.windows) do
      i = before + i
      local name, used = int(window.ms), c.used[i]
      local w = rec.by_ms[name] or {ms = window.ms, limit = window.limit, till = 0, moved = 0, raised = {}}
      rec.by_ms[name] = nil
      w.window, w.index, w.used, w.reached = window, i, used, 0
      local place = 1 -- in raised, of the step
      for _, step in ipairs(window.steps) do
        while w.raised[place] and w.raised[place].pct < step.pct do place = place + 1 end
        if used >= step.threshold then
          w.reached, w.threshold = step.pct, step.threshold
          if not w.raised[place] or w.raised[place].pct > step.pct then
            local since = c.crossed(i, step.threshold)
            table.insert(w.raised, place, {pct = step.pct, since = since})
            if step.pct == 100 then punish(c, spec, rec, since) end
            local till = ends_at(c, spec, i, step.pct, step.threshold)
            if place == #w.raised then w.till, w.moved = till, since end
            crossed[#crossed + 1] = {pct = step.pct, since = since, till = till, used = used, window = window,
                                     order = #crossed}
          end
        end
      end
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

  -- lower marks what has ended in a window: falls (pct -> true where that level ends)
  -- and fell (when). It renews a level that stands on. What the rule says now
  -- and did not say when the level was raised holds at once, without until and hold.
  local function lower(c, spec, w, same_algorithm)
    local window, stands = w.window, top_of(w)
    local rule_changed = not same_algorithm or w.limit ~= window.limit
    for _, r in ipairs(w.raised) do rule_changed = rule_changed or not window.has[r.pct] end
    local ends = math.max(w.till, w.moved + spec.hold)
    if c.now < ends and not rule_changed then return end
    w.limit = window.limit
    local reached = w.reached
    w.falls = function(pct) return pct > reached or not window.has[pct] end
    w.fell = rule_changed and c.now or math.min(ends, c.now)
    if reached > 0 then w.till = ends_at(c, spec, w.index, reached, w.threshold) end
    if reached == stands and not rule_changed then w.moved = c.now end
  end

  -- decide writes the throttle decision of the key where it changed: the window at
  -- the top with the latest end speaks. Only a sweep restates a decision to which
  -- the rule has given another limit, hold or shadow, so that processes
  -- with different rules cannot do so in turns.
  local function decide(c, x, list)
    local rec, said, spec_shadow, speaks, released_at = x.rec, x.rec.throttle, x.shadow, nil, nil
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
      if said then
        local used = 0
        for _, w in ipairs(list) do
          if w.ms == said.ms then used, said.limit = w.used, w.limit end
        end
        x.shadow = said.shadow
        emit(x, 'released', 100, said, used, released_at or c.now, released_at or c.now)
        x.shadow = spec_shadow
        if spec_shadow == '0' and penalty_of(c) > c.now then
          local part, state = c.rule.algo.penalty(c)
          part.algo.lift(state.counter, part, c.now, state.total)
        end
      end
      rec.throttle = nil
      return
    end
    local since = said and said.since or speaks.raised[#speaks.raised].since
    local new = {ms = speaks.ms, limit = speaks.window and speaks.window.limit or speaks.limit, since = since,
                 till = speaks.till, hold = x.hold, shadow = x.shadow}
    local differs = not said or new.till > said.till or c.restate
    if c.falling and not differs then
      for _, name in ipairs({'ms', 'limit', 'till', 'hold', 'shadow'}) do
        differs = differs or new[name] ~= said[name]
      end
    end
    if differs then
      emit(x, 'throttled', 100, new, speaks.used or 0, since, new.till, said and true)
      rec.throttle = new
    end
  end

  -- judge_rule compares what a key's windows under one rule of a counter hold with the
  -- record and writes what changed. It returns how many transitions it wrote, and
  -- whether the record was corrupt.
  --   spec, before      the rule's (parse_spec); how many windows of the counter stand before its own
  --   field, text       the record's field of the levels hash; the record as read, false where there is none
  --   c                 the state of its counter after what was added (state_of), and
  --   c.key, c.used     the key, and the units in each window of the rule
  --   c.crossed(w, threshold)  the time of the entry that made window w reach it
  --   c.falling         true in sweep: only there levels go down, and only there a
  --                     record passes from one rule to another
  --   c.restate         true in a sweep that publishes the throttle decision again in any case
  --   c.refunded        true in refund: levels may end earlier than they were to
  local function judge_rule(c, spec, before, field, text)
    local rec = parse_record(text, c.now)
    local x = {key = c.key, field = field, now = c.now, hold = spec.hold, rec = rec, written = 0}
    if rec.rule and rec.rule ~= spec.name then
      if not c.falling then return 0 end
      end_all(x)
    end
    local same_algorithm = not rec.rule or rec.algorithm == spec.algorithm
    x.rule, x.shadow, rec.rule = spec.name, spec.shadow, spec.name
    if c.falling or not rec.algorithm then rec.algorithm = spec.algorithm end

    local list, crossed = raise(c, spec, rec, before)
    for _, r in ipairs(crossed) do emit(x, 'raised', r.pct, r.window, r.used, r.since, r.till) end
    local changed = rec.corrupt or #crossed > 0
    if c.refunded then
      for _, w in ipairs(list) do
        local ends = w.reached < top_of(w) and c.now or free_at(c, w.index, w.threshold - 1)
        if top_of(w) == 100 and spec.shadow == '0' then ends = math.max(ends, penalty_of(c)) end
        w.till, changed = math.min(w.till, ends), true
      end
    end
    if c.falling then
      for _, w in ipairs(list) do lower(c, spec, w, same_algorithm) end
    elseif not changed then
      return 0
    end
    for _, w in pairs(rec.by_ms) do -- windows that the rule no longer has
      if c.falling then w.falls, w.fell, w.used = all, c.now, 0 end
      list[#list + 1] = w
    end
    decide(c, x, list)
    for _, w in ipairs(list) do
      if w.falls then clear(x, w, w.used, w.fell, w.falls) end
    end
    rec.list = list
    store(x.field, rec, spec.hold)
    return x.written, rec.corrupt
  end

  -- judge does so for all rules of a counter. c.text is the first one's record, false
  -- where there is none; nil: it is read here, as the others' are (check_types has seen
  -- that this cannot fail).
  local function judge(c)
    local written, corrupt, before, text = 0, false, 0, c.text
    for line in string.gmatch(c.rule.spec, '[^\n]+') do
      local spec, field = parse_spec(line), field_of(c.key, line)
      if text == nil then text = call('HGET', levels, field) end
      local n, bad = judge_rule(c, spec, before, field, text)
      written, corrupt, before, text = written + n, corrupt or bad, before + #spec.windows, nil
    end
    return written, corrupt
  end

  -- end_levels ends all levels of a record whose rule counts nothing any more.
  local function end_levels(field, text, now)
    local rec = parse_record(text, now)
    local x = {key = match(field, '^[^\n]*'), field = field, now = now, hold = 0, rec = rec, written = 0}
    end_all(x)
    store(x.field, rec, 0)
    return x.written, rec.corrupt
  end

  -- decide_block makes the decision of an operator's block of a key what it should be, and returns how
  -- many transitions it wrote. Its record is under the key, a line feed and "override", with no
  -- windows: it stands beside that of the key's rule.
  --   block    {till, hold, reason}; nil where the key is not blocked (any more)
  --   changed  the block was set anew: it is restated
  local function decide_block(key, now, block, changed)
    local field = key .. '\noverride'
    local text = call('HGET', levels, field)
    local rec = parse_record(text, now)
    local x = {key = key, field = field, now = now, hold = 0, rec = rec, rule = 'override', shadow = '0', written = 0}
    local said = rec.rule == 'override' and rec.throttle
    if not block then
      if said then emit(x, 'released', 100, said, 0, now, now) end
      if text then forget(field, rec.version) end
      return x.written
    end
    local till = block.till
    if said and not changed and now < said.till and said.till < till then till = said.till end
    if changed or not said or till ~= said.till then
      local since = said and said.since or now
      local new = {ms = 0, limit = 0, since = since, till = till, hold = block.hold, shadow = '0'}
      x.hold, x.reason = block.hold, block.reason
      emit(x, 'throttled', 100, new, 0, since, till, said and true)
      rec.rule, rec.algorithm, rec.list, rec.throttle = 'override', 'override', {}, new
      call('HSET', levels, field, format_record(rec))
    end
    call('ZADD', due, int(till), field)
    return x.written
  end

  return check_types, judge, end_levels, drop, decide_block
end
