-- plan.lua: the plan of a key, which describes the key's rules to a call.
--
-- A plan is a text in JSON (Plan.Text in plan.go). The caller makes it once, and it is decoded once here. The decoded
-- plan is kept by its text and never changes. The text has:
--   meters  per meter: algorithm, setting, span, the windows of the plan that it counts (numbered from 1), and in
--           `more` the settings that only its algorithm has
--   rules   the rules that are evaluated on the count: first the one that decides, then the shadow rules. Per rule:
--           name, algorithm (what counts it, as a word), hold, shadow, windows. Per window: ms, limit, in_flight;
--           steps, which are its levels in rising order, each a percentage and a number of units; and, if the window
--           is in periods, id, from and next
--
-- read_plan makes a table of it:
--   n, decides          how many windows there are, and how many of them decide; the windows that decide come first
--   ms, limit, lowest   lists, one value per window; lowest is the use at which its lowest level begins
--   in_flight, slots    in_flight[w] is true if window w counts only reservations; slots lists those windows, and is
--                       nil if there are none
--   meter_of, place_of  window -> its meter, and which of the meter's windows it is; nil if the window is in flight
--   meters, many        the meters, and how many there are
--   rules               the rules, with their levels
--   denied_until(s), throttled(s, since), released(s), lifted(s), fields(s, entry), in_force(s)
--                       hooks that a feature adds to the core for keys of this plan; nil if no feature has set them
--                       (the files in features/ describe each)
--   values(s, at), takes(s, w, n), later(s, from, to, wait)
--                       hooks of a plan with values (meters/distinct.lua). values reads the values of a check or a
--                       group from ARGV[at] on, and returns the next place. takes returns how many units of a
--                       window n more units take. later returns how long it is until all windows have room, at
--                       least `wait`
--   refused(s)          hook for a check that is denied although its cost counts
--
-- include: library

-- algorithms: name in a rule -> its functions; one file each, in meters/. A meter's state m has
--   meter   from the plan: algo, setting, span, windows (the plan's windows that it counts, the longest first), their
--           number n and lengths ms, and the functions of the algorithm
--   name    its key in Redis
--   now     the clock's time in ms, but never below the time of its newest event (with by_clock: always the clock's)
--   last    the time of its newest event in ms, 0 if there is none
--   total   the other data that the algorithm keeps
--   span    an event older than this many ms counts in no window
--   marked  true if its key has the mark of holds (reserved.lua). If it is set, add writes the mark
--   rest    if it is marked: for how many more ms reservations hold units of it
-- and the algorithm's functions are
--   open(m, name, now)   reads last, total and marked. It returns an upper bound of what any window holds. A corrupt
--                        meter counts as empty
--   add(m, ms, id, count)  writes `count` more units at `ms`. `count` is text as it came or an integer from int();
--                        `id` is the event's stream ID, nil for a check. It is called after the first write, so it
--                        must not fail: open has checked the type
--   look(m, used, more)  sets used[w] to the units in window w plus more, for each window w that the meter counts. An
--                        operation calls it before the functions below; nil: the function used is called instead
--   used(m, w)           returns the units in window w of the meter
--   free_at(m, w, n)     returns when window w will hold at most n units if no more traffic comes; it holds more now
--   free_times(m, w, all)  returns when the first of all units in w leaves, and when the last does; nil: free_at is
--                        called instead
--   give_back(m, w, n)   removes the oldest n units of w, the longest window, from the meter. w holds at least n. It
--                        returns how many it removed. It writes, and the time of the newest event does not go back.
--                        nil: its units cannot be given back
-- and, if units do not stay for the whole window,
--   leaves(m, w, t, units, n)  returns the earliest time at which at most n of the `units` that are charged at t may
--                        be left in window w; if units fade, the units that it has already count too. Without units:
--                        a time until which all that is charged at t counts in full
--   late(m, w, t, units)  returns how many of the units that were charged at t, in the past, window w has now; nil:
--                        all of them, until `leaves`
--   lasts(m)             returns for how many ms a key that is not written must be kept; nil: for its span
-- and, if a plan has settings for the algorithm that are not read here:
--   more(meter, given, plan, i, windows)  reads them from the decoded text of the plan's i-th meter
local algorithms = {}

-- also_fields adds a function to a plan's hook `fields`.
local function also_fields(plan, more)
  local before = plan.fields
  plan.fields = not before and more or function(s, entry)
    before(s, entry)
    more(s, entry)
  end
end

local function integer(n, least, what)
  if type(n) ~= 'number' or n < least or n >= 9007199254740992 or n % 1 ~= 0 then
    error('a plan has the ' .. what .. ' ' .. tostring(n) .. ', expected an integer >= ' .. least)
  end
  return n
end

local NO_LEVEL = 9007199254740991 -- more than any window can hold

-- read_window adds a window to the plan and to its rule.
local function read_window(plan, rule, given)
  local w = plan.n + 1
  local steps = given.steps or {}
  local window = {ms = integer(given.ms, 1, 'ms'), limit = integer(given.limit, 1, 'limit'), steps = {}, has = {}}
  for i = 1, #steps, 2 do
    window.steps[#window.steps + 1] = {pct = steps[i], threshold = integer(steps[i + 1], 1, 'threshold')}
    window.has[steps[i]] = true
  end
  plan.n, rule.windows[#rule.windows + 1] = w, window
  plan.ms[w], plan.limit[w], plan.lowest[w] = window.ms, window.limit, steps[2] or NO_LEVEL
  plan.in_flight[w] = given.in_flight and true
  if given.in_flight then
    plan.slots = plan.slots or {}
    plan.slots[#plan.slots + 1], rule.in_flight[int(window.ms)] = w, true
  end
  if not rule.shadow then plan.decides = w end
end

-- by_used and by_free_at serve as look and free_times for algorithms that have none.
local function by_used(m, used, more)
  local meter = m.meter
  for p = 1, meter.n do used[meter.windows[p]] = meter.used(m, p) + more end
end
local function by_free_at(m, w, all) return m.meter.free_at(m, w, all - 1), m.meter.free_at(m, w, 0) end

local function read_meter(plan, i, given, windows)
  local algo = algorithms[given.algorithm]
  if not algo then error('unknown algorithm ' .. tostring(given.algorithm)) end
  local counted = given.windows or {}
  table.sort(counted, function(a, b) return integer(plan.ms[a], 1, 'window') > integer(plan.ms[b], 1, 'window') end)
  local meter = {algo = algo, setting = integer(given.setting, 0, 'setting'), span = integer(given.span, 1, 'span'),
                 windows = counted, n = #counted, ms = {}, lowest = NO_LEVEL}
  for name, f in pairs(algo) do meter[name] = f end -- saves a look-up at each call
  meter.look, meter.free_times = algo.look or by_used, algo.free_times or by_free_at
  for place, w in ipairs(counted) do
    meter.ms[place], plan.meter_of[w], plan.place_of[w] = integer(plan.ms[w], 1, 'window'), i, place
    meter.lowest = min(meter.lowest, plan.lowest[w])
  end
  if algo.more then algo.more(meter, given, plan, i, windows) end
  plan.meters[i] = meter
end

local function read_plan(text)
  local given, windows = cjson.decode(text), {}
  local plan = {n = 0, decides = 0, ms = {}, limit = {}, lowest = {}, in_flight = {}, meter_of = {}, place_of = {},
                meters = {}, many = #given.meters, rules = {}, denied_until = nil, throttled = nil, released = nil,
                slots = nil, in_force = nil, fields = nil, valued = nil, values = nil, takes = nil, later = nil,
                refused = nil, lifted = nil}
  for r, one in ipairs(given.rules) do
    local rule = {name = one.name, algorithm = one.algorithm, hold = integer(one.hold, 0, 'hold'),
                  shadow = one.shadow and true or false, windows = {}, in_flight = {},
                  head = one.name .. ';' .. one.algorithm .. ';'}
    for _, window in ipairs(one.windows) do
      read_window(plan, rule, window)
      windows[plan.n] = window
    end
    plan.rules[r] = rule
  end
  for i, meter in ipairs(given.meters) do read_meter(plan, i, meter, windows) end
  integer(plan.many, 1, 'number of meters')
  return plan
end

-- plan_at returns the plan whose text is ARGV[i]. The library keeps about a thousand plans of the last calls, in two
-- generations of 500. (More would slow the garbage collector in every call.)
local plans, older_plans, kept_plans = {}, {}, 0
local function plan_at(i)
  local text = ARGV[i]
  local plan = plans[text]
  if plan then return plan end
  plan = older_plans[text] or read_plan(text)
  if kept_plans == 500 then older_plans, plans, kept_plans = plans, {}, 0 end
  plans[text], kept_plans = plan, kept_plans + 1
  return plan
end

-- plans_at reads n plans from ARGV[at] on. It returns a list of them, which all calls share, and the next place.
local listed = {}
local function plans_at(at, n)
  for p = 1, n do listed[p], at = plans[ARGV[at]] or plan_at(at), at + 1 end
  for p = #listed, n + 1, -1 do listed[p] = nil end -- of an earlier call
  return listed, at
end

-- section_at reads a section: keys that share a plan of the list and a partition. It returns the number of keys, their
-- plan, their partition, and the next place in ARGV. ARGV[at] is number + 8192 * (plan + 4096 * partition). Plans and
-- partitions are numbered from 1. A call with one plan and one partition has no sections.
local function section_at(at, list, partitions)
  local code = number(at, 1)
  local many = code % 8192
  code = (code - many) / 8192
  local plan = list[code % 4096]
  local partition = (code - code % 4096) / 4096
  if not plan or many < 1 or partition < 1 or partition > partitions then
    error('ARGV[' .. at .. '] is ' .. ARGV[at] .. ', expected keys of a plan and a partition')
  end
  return many, plan, partition, at + 1
end
