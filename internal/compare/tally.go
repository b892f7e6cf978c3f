package compare

import (
	"github.com/streamcounter/streamcounter/windows"
)

// tally compares each verdict of one algorithm with the oracle about what that
// algorithm itself admitted before.
type tally struct {
	truth *truth

	offered, admitted, over, under volume
	overshoot                      int64 // units above the limit, the most that any window held
	firstOver, firstUnder          *moment
}

// volume counts requests and the units that they asked for.
type volume struct{ requests, units int64 }

func (v *volume) add(r Request) {
	v.requests++
	v.units += r.Cost
}

func newTally(ws []windows.Window) *tally { return &tally{truth: newTruth(ws)} }

func (t *tally) take(r Request, admitted bool) {
	t.offered.add(r)
	excess := t.truth.excess(r)
	switch {
	case admitted && excess > 0:
		t.over.add(r)
		t.overshoot = max(t.overshoot, excess)
		note(&t.firstOver, r)
	case !admitted && excess <= 0:
		t.under.add(r)
		note(&t.firstUnder, r)
	}
	if admitted {
		t.admitted.add(r)
		t.truth.add(r)
	}
}

func note(first **moment, r Request) {
	if *first == nil {
		*first = &moment{r.Ms, r.Key}
	}
}
