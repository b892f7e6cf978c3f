package compare

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// broken is a counter that admits what the test says, whatever the limit.
type broken struct {
	admits func(n int) bool
	asked  int
}

func (b *broken) Check(_ context.Context, asks []counters.Request) (counters.Verdict, error) {
	if len(asks) != 1 {
		return counters.Verdict{}, errors.New("want one ask")
	}
	b.asked++
	return counters.Verdict{Allowed: b.admits(b.asked)}, nil
}

// driven runs a trace through a counter of the test.
func driven(t *testing.T, ws []windows.Window, requests []Request, counter checker) Result {
	t.Helper()
	rules, err := RuleOf("", ws)
	testkit.Must(t, err)
	c := byCounter("test", KindInProcess, counter, &clock{}, rules.List()[0])
	testkit.Must(t, (&Config{}).drive(t.Context(), []*contestant{c}, requests))
	return c.result(1)
}

// Each algorithm is compared with its own past: a request that it should not have admitted takes room from later
// ones.
func TestOverAndUnder(t *testing.T) {
	ws := []windows.Window{window(3, 10*time.Second), window(4, time.Minute)}
	requests := []Request{
		{1_000, "a", 2, nil},  // room
		{2_000, "a", 2, nil},  // 4 of 3
		{3_000, "b", 1, nil},  // room
		{10_999, "a", 3, nil}, // 7 of 3 if both were admitted, 5 of 3 after the first alone
		{11_000, "a", 1, nil}, // of both: 3 of 3, but 5 of 4
		{12_000, "b", 3, nil}, // 4 of 3
		{61_000, "a", 1, nil}, // the first has left
	}
	offered := Result{Algorithm: "test", Kind: KindInProcess, OfferedRequests: 7, OfferedUnits: 13}
	all, none, some := offered, offered, offered
	all.AdmittedRequests, all.AdmittedUnits = 7, 13
	// a: 4 of 3, 7 of 3, 6 of 3 and 8 of 4; b: 4 of 3; a at 61 s: 2+3+1+1 of 4
	all.OverAdmittedRequests, all.OverAdmittedUnits, all.GreatestOvershoot = 5, 10, 4
	all.FirstOverAdmitted = &moment{2_000, "a"}
	none.UnderAdmittedRequests, none.UnderAdmittedUnits, none.FirstUnderAdmitted = 7, 13, &moment{1_000, "a"}
	// Right but for the third, which it denies, and the fourth, which it admits.
	some.AdmittedRequests, some.AdmittedUnits = 2, 5
	some.OverAdmittedRequests, some.OverAdmittedUnits, some.GreatestOvershoot = 1, 3, 2
	some.FirstOverAdmitted = &moment{10_999, "a"}
	some.UnderAdmittedRequests, some.UnderAdmittedUnits = 3, 5 // and 12_000, 61_000
	some.FirstUnderAdmitted = &moment{3_000, "b"}
	for _, c := range []struct {
		name   string
		admits func(n int) bool
		want   Result
	}{
		{"all", func(int) bool { return true }, all}, {"none", func(int) bool { return false }, none},
		{"some", func(n int) bool { return n == 1 || n == 4 }, some},
	} {
		if diff := cmp.Diff(c.want, driven(t, ws, requests, &broken{admits: c.admits})); diff != "" {
			t.Errorf("admits %s (-want +have)\n%s", c.name, diff)
		}
	}
}

func some[T any](x T) *T { return &x }

// finished are two comparisons with every kind of figure.
func finished() []*Comparison {
	return []*Comparison{
		{
			Trace: TraceInfo{Name: "poisson: 10 requests per second", Requests: 3, Units: 6,
				Keys: 2000, FirstMs: start, LastMs: start + 1500},
			Windows: []WindowInfo{{50, 10_000}, {100, 60_000}}, Redis: some("redis://h:1"),
			Algorithms: []Result{
				{Algorithm: "sliding-log", Kind: KindRedis, OfferedRequests: 3, OfferedUnits: 6, AdmittedRequests: 2,
					AdmittedUnits: 5, OverAdmittedRequests: 1, OverAdmittedUnits: 2,
					UnderAdmittedRequests: 1, UnderAdmittedUnits: 1, GreatestOvershoot: 2,
					FirstOverAdmitted: &moment{start, "a"}, FirstUnderAdmitted: &moment{start + 1, "b"},
					RedisCPU: some(9.25), BytesPerKey: some(700.0)},
				{Algorithm: GCRA, Kind: KindBaseline, OfferedRequests: 3, OfferedUnits: 6},
			},
		},
		{
			Trace: TraceInfo{Name: "log x", Requests: 1, Units: 1, Keys: 1, FirstMs: start, LastMs: start,
				Sorted: 2, RejectedLines: 1},
			Windows: []WindowInfo{{50, 10_000}}, Redis: some("redis://h:1"),
			Algorithms: []Result{{Algorithm: Oracle, Kind: KindOracle, OfferedRequests: 1, OfferedUnits: 1,
				AdmittedRequests: 1, AdmittedUnits: 1}},
		},
	}
}

func TestJSON(t *testing.T) {
	b, err := json.MarshalIndent(Report{finished()}, "", "  ")
	testkit.Must(t, err)
	testkit.Golden(t, "testdata/report.json", string(b)+"\n")
}

// truth removes only entries that are never needed again, and adds up what was admitted in one millisecond.
func TestTruthForgets(t *testing.T) {
	truth := newTruth([]windows.Window{window(10, time.Second)})
	for ms := range int64(100_000) {
		for range 2 {
			if r := (Request{ms, "a", 1, nil}); truth.excess(r) <= 0 {
				truth.add(r)
			}
		}
	}
	if n := len(truth.admitted["a"]); n != 5 {
		t.Errorf("it keeps %d admissions, want the 5 of two units within the window", n)
	}
}

func TestGCRA(t *testing.T) {
	g := newGCRA([]windows.Window{window(3, 10*time.Second)})
	for _, step := range []struct {
		r    Request
		want bool
	}{
		{Request{0, "a", 2, nil}, true},
		{Request{0, "a", 1, nil}, true}, // the whole limit at once
		{Request{0, "a", 1, nil}, false},
		{Request{0, "b", 3, nil}, true},
		{Request{3333, "a", 1, nil}, false}, // a unit becomes free every 3333 ms and a third
		{Request{3334, "a", 1, nil}, true},
		{Request{6666, "a", 1, nil}, false}, // rounding has freed nothing
		{Request{6667, "a", 1, nil}, true},
		{Request{10_000, "a", 1, nil}, true},
		{Request{19_999, "a", 3, nil}, false},
		{Request{20_000, "a", 3, nil}, true}, // and the whole limit again
	} {
		if got := g.admit(step.r); got != step.want {
			t.Errorf("%+v: admitted %t, want %t", step.r, got, step.want)
		}
	}
}
