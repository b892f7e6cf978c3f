-- fixed-window.lua: the units since the last multiple of the window's length. Around a boundary, up to twice the limit
-- can pass. It is the baseline that the other algorithms are compared with. aligned.lua has the form of a meter.
--
-- include: library, plan, state, aligned

local fixed_window = {open = open_aligned}
algorithms['fixed-window'] = fixed_window

function fixed_window.add(m, ms, _, count) add_aligned(m, ms, count, 1) end

function fixed_window.used(m, w)
  local _, current = aligned_at(m, w, m.now)
  return current
end

function fixed_window.free_at(m, w) return aligned_at(m, w, m.now) + m.meter.ms[w] end

function fixed_window.leaves(m, w, t) return t - t % m.meter.ms[w] + m.meter.ms[w] end

function fixed_window.give_back(m, w, n) return give_back_aligned(m, w, n, 1) end
