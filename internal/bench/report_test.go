package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// seen makes a tally of calls that all took as long.
func seen(ops, calls int64, wall, cpu, each time.Duration) *tally {
	t := newTally()
	t.ops, t.calls, t.asked, t.wall, t.cpu, t.cpuTold = ops, calls, ops, wall, cpu, cpu > 0
	_ = t.latency.RecordValues(int64(each), calls)
	return t
}

func sample() *Report {
	const ms, us = time.Millisecond, time.Microsecond
	bytes, perKey, perEntry, used := int64(512), 1900.5, 19.005, 100.0
	r := &Report{
		CommandLine: "streamcounter bench", Redis: "redis://127.0.0.1:6379",
		Started: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Seconds: 12.5,
		RedisVersion: "7.0.15", StreamNodeMaxBytes: &bytes, Go: "go1.26.0", Platform: "linux/amd64", CPUs: 2,
		Prefix: "sc-bench-00000000",
		Settings: Settings{Keys: 1000, Skew: Zipf, ZipfS: 1.1, EntriesPerKey: 100, Limit: 1000, PerMs: 60_000,
			Connections: 8, Batch: 500, Partitions: 16, Seed: 1},
	}
	add := func(p *part, rate float64, rounds ...round) *Part {
		r.Parts = append(r.Parts, *partOf(p, rounds, rate))
		return &r.Parts[len(r.Parts)-1]
	}
	add(&part{operation: Append, yardsticks: []contestant{{name: "XADD"}}}, 0,
		round{seen(1000, 2, 2*ms, 2*ms, 900*us), seen(1000, 2, ms, ms, 500*us)})
	fold := seen(990, 2, 10*ms, 5*ms, 4*ms)
	fold.asked, fold.folded, fold.late, fold.gone, fold.merged = 1000, 980, 6, 4, 300
	fold.errors, fold.first = 1, errors.New("reading events: EOF")
	add(&part{operation: Fold, algorithm: "sliding-log", yardsticks: []contestant{{name: "XREADGROUP+XACK"}}}, 0,
		round{fold, seen(1000, 2, 4*ms, 1250*us, 2*ms)})
	// Ratios of 4, 2 and 3 in the slices, of 2.4 in the sum: the slices differ in weight.
	check := func(ops int64, cpu time.Duration) *tally {
		t := seen(ops, ops, 50*ms, cpu, 120*us)
		t.admitted, t.denied, t.lateStart = ops*3/4, ops/4, 70*us
		return t
	}
	yard := func(ops int64, cpu time.Duration) *tally { return seen(ops, ops, 50*ms, cpu, 60*us) }
	p := add(&part{operation: Check, algorithm: "sliding-log", yardsticks: []contestant{{name: "GET"},
		{name: "GCRA"}}}, 2000,
		round{check(100, 4*ms), yard(100, ms), seen(100, 100, 50*ms, 2*ms, 80*us)},
		round{check(100, 16*ms), yard(100, 8*ms), seen(100, 100, 50*ms, 2*ms, 80*us)},
		round{check(100, 6*ms), yard(100, 2*ms), seen(100, 100, 50*ms, 2*ms, 80*us)})
	p.BytesPerKey, p.BytesPerEntry, p.UsedPerKeyBefore, p.UsedPerKeyAfter = &perKey, &perEntry, &used, &used
	// As on a server that tells no CPU.
	add(&part{operation: Peek, algorithm: "sliding-log", yardsticks: []contestant{{name: "GET"}}}, 0,
		round{seen(300, 300, 6*ms, 0, 20*us), seen(300, 300, 3*ms, 0, 10*us)})
	return r
}

func TestReportAsJSON(t *testing.T) {
	text, err := json.MarshalIndent(sample(), "", "  ")
	testkit.Must(t, err)
	testkit.Golden(t, "testdata/report.json", string(text)+"\n")
}

func TestReportAsText(t *testing.T) {
	var b bytes.Buffer
	testkit.Must(t, sample().WriteText(&b))
	testkit.Golden(t, "testdata/report.txt", b.String())
}

func TestRatios(t *testing.T) {
	y := sample().Parts[2].Yardsticks[0]
	if got := *y.XYardstick; got < 2.363 || got > 2.364 { // 26/11
		t.Errorf("the ratio of the sums is %v", got)
	}
	if got := *y.XYardstickMedian; got != 3 {
		t.Errorf("the median of 4, 2 and 3 is %v", got)
	}
	if m := median([]float64{4, 1, 3, 2}); *m != 2.5 {
		t.Errorf("the median of 1 to 4 is %v", *m)
	}
}
