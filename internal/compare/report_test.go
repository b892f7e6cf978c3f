package compare

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
	var b strings.Builder
	testkit.Must(t, WriteJSON(&b, finished()))
	testkit.Golden(t, "testdata/report.json", b.String())
}
