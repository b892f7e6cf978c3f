package compare

import (
	"math"

	"github.com/streamcounter/streamcounter/windows"
)

// truth recounts what one algorithm admitted, from the definition alone: a window of length W at `now` holds what was
// admitted at now-W < ms <= now. It keeps each admission and adds them up one by one, so it cannot have the errors of
// a more complex count. It removes only what has left every window.
type truth struct {
	windows  []windows.Window
	longest  int64                  // ms
	admitted map[string][]admission // key → in the order of time
}

// admission is everything that was admitted in one millisecond: it enters and leaves a window as a whole.
type admission struct{ ms, units int64 }

func newTruth(ws []windows.Window) *truth {
	return &truth{windows: ws, longest: longest(ws), admitted: map[string][]admission{}}
}

// longest returns the length of the longest window, in ms.
func longest(ws []windows.Window) (ms int64) {
	for _, w := range ws {
		ms = max(ms, w.Per.Milliseconds())
	}
	return ms
}

// excess is by how many units r would put the fullest of its key's windows over the limit. It is 0 or below if all of
// them have room for r.
func (t *truth) excess(r Request) int64 {
	list := t.admitted[r.Key]
	for len(list) > 0 && list[0].ms <= r.Ms-t.longest {
		list = list[1:]
	}
	t.admitted[r.Key] = list
	worst := int64(math.MinInt64)
	for _, w := range t.windows {
		sum := r.Cost
		for _, a := range list {
			if a.ms > r.Ms-w.Per.Milliseconds() && a.ms <= r.Ms {
				sum += a.units
			}
		}
		worst = max(worst, sum-w.Limit)
	}
	return worst
}

// add records that r was admitted. Requests come in the order of time.
func (t *truth) add(r Request) {
	list := t.admitted[r.Key]
	if n := len(list); n > 0 && list[n-1].ms == r.Ms {
		list[n-1].units += r.Cost
		return
	}
	t.admitted[r.Key] = append(list, admission{r.Ms, r.Cost})
}
