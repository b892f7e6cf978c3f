package compare

import "github.com/streamcounter/streamcounter/windows"

// truth recounts what one algorithm admitted, from the definition alone: a
// window of W at `now` holds what was admitted at now-W < ms <= now. It keeps
// each admission and adds them up one by one, so that it cannot be wrong in the
// way that a clever count can. It forgets only what has left every window.
type truth struct {
	windows  []windows.Window
	longest  int64                  // ms
	admitted map[string][]admission // key → in the order of time
}

// admission is all that was admitted in one millisecond: it enters a window
// and leaves it as one.
type admission struct{ ms, units int64 }

func newTruth(ws []windows.Window) *truth {
	t := &truth{windows: ws, admitted: map[string][]admission{}}
	for _, w := range ws {
		t.longest = max(t.longest, w.Per.Milliseconds())
	}
	return t
}

// excess is by how many units r would put the worst of its key's windows over
// the limit; 0 or below where all of them have room for it.
func (t *truth) excess(r Request) int64 {
	list := t.admitted[r.Key]
	for len(list) > 0 && list[0].ms <= r.Ms-t.longest {
		list = list[1:]
	}
	t.admitted[r.Key] = list
	var worst int64
	for i, w := range t.windows {
		sum := r.Cost
		for _, a := range list {
			if a.ms > r.Ms-w.Per.Milliseconds() && a.ms <= r.Ms {
				sum += a.units
			}
		}
		if over := sum - w.Limit; i == 0 || over > worst {
			worst = over
		}
	}
	return worst
}

// add notes that r was admitted. Requests come in the order of time.
func (t *truth) add(r Request) {
	list := t.admitted[r.Key]
	if n := len(list); n > 0 && list[n-1].ms == r.Ms {
		list[n-1].units += r.Cost
		return
	}
	t.admitted[r.Key] = append(list, admission{r.Ms, r.Cost})
}
