-- fixed-window.lua: the units since the last multiple of the window's length. Up
-- to twice the limit passes around a boundary: the baseline that others are
-- measured against. aligned.lua has the form of a counter.
--
-- include: prelude, aligned

local fixed_window = {}
algorithms['fixed-window'] = fixed_window

function fixed_window.open(counter, now, rule) return read_aligned(counter, now, rule) end

function fixed_window.add(counter, rule, last, t, ms, _, count)
  return add_aligned(counter, rule, last, t, ms, count, 1)
end

function fixed_window.used(s, w)
  local _, current = aligned_at(s.rule, w, s.last, s.total, s.now)
  return current
end

function fixed_window.free_at(s, w)
  return aligned_at(s.rule, w, s.last, s.total, s.now) + s.rule.ms[w]
end

function fixed_window.leaves(s, w, t) return t - t % s.rule.ms[w] + s.rule.ms[w] end

function fixed_window.give_back(s, w, n) return give_back_aligned(s, w, n, 1) end
