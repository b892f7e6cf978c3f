package compare

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/streamcounter/streamcounter/windows"
)

// tally compares each verdict of one algorithm with the oracle about what that
// algorithm itself admitted before.
type tally struct {
	truth    *truth
	verdicts []bool // in the order of the trace

	offered, admitted, over, under volume
	overshoot                      int64 // units above the limit, the most that any window held
	firstOver, firstUnder          *Moment
}

// volume counts requests and the units that they asked for.
type volume struct{ requests, units int64 }

func (v *volume) add(r Request) {
	v.requests++
	v.units += r.Cost
}

func newTally(ws []windows.Window) *tally { return &tally{truth: newTruth(ws)} }

func (t *tally) take(r Request, admitted bool) {
	t.verdicts = append(t.verdicts, admitted)
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

func note(first **Moment, r Request) {
	if *first == nil {
		*first = &Moment{r.Ms, r.Key}
	}
}

// newHistogram gives a histogram of how long checks take, in ns, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)
}
