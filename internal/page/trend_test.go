package page

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// The trend has a point a minute of the last six hours, and sums each rule's checks of these.
func TestTrendIsBounded(t *testing.T) {
	var tr trend
	begin := time.UnixMilli(1_700_000_000_000)
	minutes := func(from, to int) {
		for i := from; i < to; i++ {
			now := begin.Add(time.Duration(i) * time.Minute)
			n := int64(i)
			tr.add(now, activity.Activity{Processes: []activity.Process{
				{Name: "serve", AtMs: now.UnixMilli(), Counts: map[string]activity.Counts{
					"api": {Allowed: 600 * n, Denied: 60 * n}, "watch": {Allowed: 540 * n, Denied: 120 * n}}},
				{Name: "work", AtMs: now.UnixMilli(), Counts: map[string]activity.Counts{
					"api": {Events: 120 * n, Throttled: 3}, "watch": {Throttled: 5}}}}},
				map[string]bool{"watch": true})
		}
	}
	minutes(100, 101)
	if n := len(tr.hours().Points); n != 0 {
		t.Errorf("one look gives %d points", n)
	}
	minutes(101, 103)
	got := tr.hours()
	want := point{AtMs: begin.Add(101 * time.Minute).UnixMilli(), Allowed: 10, Denied: 1, ShadowDenied: 2, Events: 2,
		Throttled: 3, Shadow: 5}
	if len(got.Points) != 2 || got.Points[0] != want {
		t.Errorf("%+v, want %+v", got.Points, want)
	}
	if got.Totals["api"] != (tally{1200, 120}) || got.Totals["watch"] != (tally{1080, 240}) {
		t.Errorf("%+v", got.Totals)
	}
	minutes(103, 1000)
	if got = tr.hours(); len(got.Points) != trendPoints || got.Totals["api"].Denied != trendPoints*60 {
		t.Errorf("%d points, %+v", len(got.Points), got.Totals)
	}
}

// A process that begins, or that was not seen for long, adds what it counts from then on.
func TestTrendOfProcessesThatCome(t *testing.T) {
	var tr trend
	now := time.UnixMilli(1_700_000_000_000)
	look := func(after time.Duration, processes ...activity.Process) point {
		now = now.Add(after)
		for i := range processes {
			processes[i].AtMs = now.UnixMilli()
		}
		tr.add(now, activity.Activity{Processes: processes}, nil)
		if len(tr.minute) == 0 {
			return point{}
		}
		return tr.minute[len(tr.minute)-1].point
	}
	serve := func(allowed int64) activity.Process {
		return activity.Process{Name: "serve", Counts: map[string]activity.Counts{"api": {Allowed: allowed}}}
	}
	look(0)
	if got := look(time.Minute, serve(1_000_000)); got.Allowed != 0 {
		t.Errorf("a process that comes: %+v", got)
	}
	if got := look(time.Minute, serve(1_000_060)); got.Allowed != 1 {
		t.Errorf("a minute later: %+v", got)
	}
	if got := look(time.Hour, serve(2_000_000)); got.Allowed != 0 {
		t.Errorf("after an hour without a look: %+v", got)
	}
}

// The latency is that of the last minute, not of all calls since the start.
func TestLatencyIsOfTheLastMinute(t *testing.T) {
	var s sampler
	now := time.Now()
	calls := []uint64{1000, 1000, 1000} // within 1, 2 and 4 ms
	look := func(after time.Duration) *Latency {
		now = now.Add(after)
		return s.latency(now, Config{Latencies: func() check.Latencies {
			return check.Latencies{Seconds: []float64{0.001, 0.002, 0.004}, Calls: append([]uint64{}, calls...),
				All: calls[2]}
		}})
	}
	if got := look(0); got != nil {
		t.Errorf("of calls before: %+v", got)
	}
	calls[2] += 100 // that took 2 to 4 ms
	if got := look(time.Second); got == nil || got.P50 != 3 || got.P99 < 3.9 || got.P99 > 4 {
		t.Errorf("%+v", got)
	}
	look(30 * time.Second)
	if got := look(31 * time.Second); got != nil {
		t.Errorf("a minute later: %+v", got)
	}
}
