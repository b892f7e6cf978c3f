package compare

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func some[T any](x T) *T { return &x }

// finished are two comparisons with every kind of figure.
func finished() []*Comparison {
	return []*Comparison{
		{
			Trace: TraceInfo{Name: "poisson: 10 requests per second", Seed: some(uint64(7)), Requests: 3, Units: 6,
				Keys: 2000, FirstMs: start, LastMs: start + 1500},
			Windows: []WindowInfo{{50, 10_000}, {100, 60_000}}, Redis: some("redis://h:1"), PingCPU: some(12.5),
			Algorithms: []Result{
				{Algorithm: "sliding-log", Kind: KindRedis, OfferedRequests: 3, OfferedUnits: 6, AdmittedRequests: 2,
					AdmittedUnits: 5, OverAdmittedRequests: 1, OverAdmittedUnits: 2,
					UnderAdmittedRequests: 1, UnderAdmittedUnits: 1, GreatestOvershoot: 2,
					FirstOverAdmitted: &Moment{start, "a"}, FirstUnderAdmitted: &Moment{start + 1, "b"},
					RedisCPU: some(9.25), P50: some(50.1), P99: some(123.4), BytesPerKey: some(700.0)},
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

func TestTables(t *testing.T) {
	var b strings.Builder
	testkit.Must(t, WriteTables(&b, finished()))
	embedded := finished()[:1]
	embedded[0].Redis, embedded[0].PingCPU, embedded[0].Algorithms[0].RedisCPU = some("embedded"), nil, nil
	testkit.Must(t, WriteTables(&b, embedded))
	testkit.Golden(t, "testdata/tables.txt", b.String())
}

// Keys come from logs, which strangers write.
func TestPage(t *testing.T) {
	const evil = `ip:<script>alert(1)</script>"><img src=https://x>`
	ws := []windows.Window{window(5, time.Second), window(20, 10*time.Second)}
	trace := Trace{Name: "log <b>x</b>"}
	for i := range int64(100) {
		trace.Requests = append(trace.Requests, Request{start + i*40, evil, 1}, Request{start + i*40, "quiet", 1})
	}
	trace.Requests = append(trace.Requests, Request{start + 4000, evil, 1})
	got := run(t, Config{Algorithms: []string{InProcess, GCRA}, Windows: ws}, trace)
	if result(t, got, GCRA).FirstOverAdmitted == nil {
		t.Fatal("gcra did not go wrong: the page has nothing to say of it")
	}
	var b strings.Builder
	if err := WritePage(&b, []*Comparison{got}, "streamcounter compare --clf '<i>'"); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, raw := range []string{"<script", "<img", "<b>", "<i>", "NaN", "ZgotmplZ"} {
		if strings.Contains(text, raw) {
			t.Errorf("the page has %s", raw)
		}
	}
	for _, want := range []string{"ip:&lt;script&gt;alert(1)", "gcra first over-admitted", "limit 20",
		"compare --clf &#39;&lt;i&gt;&#39;", "units in the last 10s"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if n := strings.Count(text, "<svg"); n != 2 || strings.Count(text, "</svg>") != 2 {
		t.Errorf("%d plots, want 2", n)
	}
	for _, name := range []string{InProcess, GCRA, Oracle} {
		if n := strings.Count(text, ">"+name+"</text>"); n != 2 {
			t.Errorf("%s is in the legends of %d plots, want 2", name, n)
		}
	}
	// Nothing is loaded from anywhere: the names of namespaces are not addresses.
	text = regexp.MustCompile(`xmlns(:xlink)?="http://www\.w3\.org/[a-z0-9/]+"`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "src=https://x", "") // the key's, escaped above
	if m := regexp.MustCompile(`(?i)https?://|url\(|@import|<link|src=|href=`).FindString(text); m != "" {
		t.Errorf("the page loads %s", m)
	}
}
