package compare

import (
	"github.com/streamcounter/streamcounter/windows"
)

// tally compares each verdict of one algorithm with a recount of the requests that this algorithm admitted before.
type tally struct {
	truth *truth
	Result
}

func newTally(ws []windows.Window) *tally { return &tally{truth: newTruth(ws)} }

func (t *tally) take(r Request, admitted bool) {
	t.OfferedRequests++
	t.OfferedUnits += r.Cost
	excess := t.truth.excess(r)
	switch {
	case admitted && excess > 0:
		t.OverAdmittedRequests++
		t.OverAdmittedUnits += r.Cost
		t.GreatestOvershoot = max(t.GreatestOvershoot, excess)
		note(&t.FirstOverAdmitted, r)
	case !admitted && excess <= 0:
		t.UnderAdmittedRequests++
		t.UnderAdmittedUnits += r.Cost
		note(&t.FirstUnderAdmitted, r)
	}
	if admitted {
		t.AdmittedRequests++
		t.AdmittedUnits += r.Cost
		t.truth.add(r)
	}
}

func note(first **moment, r Request) {
	if *first == nil {
		*first = &moment{r.Ms, r.Key}
	}
}
