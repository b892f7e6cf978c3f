package page

import (
	"context"
	"math"
	"time"

	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// Bounds of the trend.
const (
	trendEvery  = time.Minute
	trendPoints = 6 * 60 // six hours
	trendRules  = 100    // of a minute whose checks are summed by rule
)

// trend is what happened in the last hours, a point a minute. It is kept while no page is open, too.
type trend struct {
	meter  meter
	minute []minute
	made   uint64 // points so far
}

// minute is a point, and how many checks each rule allowed and denied in it.
type minute struct {
	point
	byRule map[string]tally
}

type tally struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
}

// keepTrend adds a point a minute until ctx ends.
func (f *Feed) keepTrend(ctx context.Context) {
	for more := true; more; more = pause.For(ctx, trendEvery) {
		within, cancel := context.WithTimeout(ctx, readWithin)
		all, err := f.config.Activity(within)
		cancel()
		if err == nil {
			f.mu.Lock()
			f.trend.add(time.Now(), all, shadows(f.config.Rules()))
			f.mu.Unlock()
		}
	}
}

// add adds a point. The first reading has nothing to compare with. After a reading that failed, the next point is of
// two minutes.
func (t *trend) add(now time.Time, all activity.Activity, shadows map[string]bool) {
	first := t.meter.before == nil
	before := t.meter.before
	rates := t.meter.rates(all, 2*trendEvery+maxReportAge)
	if first {
		return
	}
	m := minute{point: point{AtMs: now.UnixMilli()}, byRule: map[string]tally{}}
	m.add(rates, shadows)
	throttled := map[string]int64{}
	for _, p := range all.Processes {
		seconds := float64(p.AtMs-before[p.Name].atMs) / 1000
		for rule, c := range p.Counts {
			throttled[rule] += c.Throttled
			r := t.meter.before[p.Name].rates[rule]
			one, known := m.byRule[rule]
			if r.Allowed+r.Denied == 0 || !known && len(m.byRule) == trendRules {
				continue
			}
			m.byRule[rule] = tally{one.Allowed + int64(math.Round(r.Allowed*seconds)),
				one.Denied + int64(math.Round(r.Denied*seconds))}
		}
	}
	m.Throttled, m.Shadow = split(throttled, shadows)
	if t.minute = append(t.minute, m); len(t.minute) > trendPoints {
		t.minute = t.minute[1:]
	}
	t.made++
}

// hours is the trend as a page gets it.
type hours struct {
	Points []point `json:"points"`
	// Totals are the checks of each rule in these hours.
	Totals map[string]tally `json:"totals"`
}

func (t *trend) hours() *hours {
	out := &hours{Points: []point{}, Totals: map[string]tally{}}
	for _, m := range t.minute {
		out.Points = append(out.Points, m.point)
		for rule, n := range m.byRule {
			sum := out.Totals[rule]
			out.Totals[rule] = tally{sum.Allowed + n.Allowed, sum.Denied + n.Denied}
		}
	}
	return out
}
