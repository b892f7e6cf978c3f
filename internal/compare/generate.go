package compare

import (
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// start is when generated traces begin, in ms: far from zero, like real times.
const start = 1_700_000_000_000

// Bounds of the boundary demonstrations. Below the smallest window, the second demonstration would need fractions of
// a millisecond.
const (
	MaxBoundaryLimit  = 100_000
	MinBoundaryWindow = 20 * time.Millisecond
)

// Boundary returns two traces that show how the edge of a window affects algorithms that count by such edges. Each
// trace has two bursts of the whole limit.
//
// In the first trace, the bursts are a tenth of the window before and after the edge: a fixed window admits both. In
// the second trace, they are just before the edge and nine tenths of a window after it. By then, an algorithm that
// estimates from two windows, or that refills units over time, has forgotten most of the first burst, although all of
// it still counts.
//
// The window is within the bounds above.
func Boundary(w windows.Window) []Trace {
	per := w.Per.Milliseconds()
	edge := (start/per + 1) * per
	tenth := per / 10
	return []Trace{
		bursts("boundary 1", w.Limit, edge, tenth, tenth),
		bursts("boundary 2", w.Limit, edge, 1, per*9/10),
	}
}

func bursts(name string, limit, edge, before, after int64) Trace {
	t := Trace{Name: fmt.Sprintf("%s: %d requests %s before an edge of the fixed windows, %d more %s after it", name,
		limit, millis(before), limit, millis(after))}
	for _, ms := range []int64{edge - before, edge + after} {
		for range limit {
			t.Requests = append(t.Requests, Request{Ms: ms, Key: "user:1", Cost: 1})
		}
	}
	return t
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
