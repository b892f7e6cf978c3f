package counters_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// mixedOracle recounts a rule whose windows are counted by several algorithms: each algorithm separately.
type mixedOracle struct {
	clock *clock
	parts map[string]*mixedPart
}

type mixedPart struct {
	Oracle
	spans []int64 // of its windows
	// from returns when the first of its periods began, for windows of the calendar; otherwise nil.
	from func(now int64) int64
}

func (o *mixedOracle) partOf(window int64) *mixedPart {
	for _, p := range o.parts {
		if slices.Contains(p.spans, window) {
			return p
		}
	}
	panic(fmt.Sprint("no window of ", window))
}

func (o *mixedOracle) Clock(key string, now int64) int64 {
	for _, p := range o.parts {
		now = p.Clock(key, now)
	}
	return now
}

// Add skips a part if the event is too late for all windows of the part.
func (o *mixedOracle) Add(key string, ms, count int64) {
	now := o.Clock(key, o.clock.ms)
	for _, p := range o.parts {
		if p.from != nil && ms >= p.from(now) || p.from == nil && ms > now-slices.Max(p.spans) {
			p.Add(key, ms, count)
		}
	}
}

func (o *mixedOracle) Used(key string, now, window int64) int64 {
	return o.partOf(window).Used(key, now, window)
}

func (o *mixedOracle) Truth(key string, now, window int64) int64 {
	return o.partOf(window).Truth(key, now, window)
}

func (o *mixedOracle) GiveBack(string, int64, int64, int64) int64 { panic("not drawn") }

func (o *mixedOracle) Reset(key string) {
	for _, p := range o.parts {
		p.Reset(key)
	}
}

var (
	drawnUnits = map[string][]string{"day": {""}, "week": {"", "sunday", "wed"},
		"month": {"", "15", "29", "30", "31"}, "year": {"", "04-06", "02-29"}}
	drawnZones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"}
)

// drawCalendar draws a window of the calendar, in the form of a rules file.
func drawCalendar(t *rapid.T, unit string) string {
	text := fmt.Sprintf("{limit: %d, per: %s, zone: %s", rapid.Int64Range(1, 40).Draw(t, "limit"), unit,
		rapid.SampledFrom(drawnZones).Draw(t, "zone"))
	if starts := rapid.SampledFrom(drawnUnits[unit]).Draw(t, "starts"); starts != "" {
		text += ", starts: " + starts
	}
	return text + "}"
}

// newMixedTimeline returns a timeline over one to six windows. Up to three of them are of the calendar. Each
// other window has its own algorithm.
func newMixedTimeline(t *rapid.T, s *store, prefix string) *timeline {
	o := &mixedOracle{clock: s.clock, parts: map[string]*mixedPart{}}
	l := &timeline{T: t, s: s, oracle: o, keys: []string{prefix + "a", prefix + "b{" + prefix + "a}"}, noRefunds: true,
		largest: 10, calendars: map[int64]windows.Calendar{}}
	yaml := "rules:\n  - name: r\n    match: '*'\n    alerts: [80%]\n"
	if rapid.Bool().Draw(t, "on deny") {
		yaml += "    on_deny: charge\n"
	}
	algorithms := windows.Algorithms
	if s.serve == nil { // in process all is exact
		algorithms = []string{windows.DefaultAlgorithm}
	}
	var texts []string
	seen := map[string]bool{}
	units := rapid.Permutation([]string{"day", "week", "month", "year"}).Draw(t, "units")
	for _, unit := range units[:rapid.IntRange(0, 3).Draw(t, "calendars")] {
		texts = append(texts, drawCalendar(t, unit))
	}
	for range rapid.IntRange(1-min(1, len(texts)), 3).Draw(t, "windows") {
		w := rapid.SampledFrom([]string{"10ms", "100ms", "1s", "1900ms", "1m", "1h"}).Draw(t, "window")
		a := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
		if !seen[w] {
			seen[w] = true
			texts = append(texts, fmt.Sprintf("{limit: %d, per: %s, algorithm: %s}",
				rapid.Int64Range(1, 30).Draw(t, "limit"), w, a))
			if a == windows.SlidingBuckets && !seen[a] {
				seen[a] = true
				yaml += fmt.Sprintf("    buckets: %d\n", testBuckets)
			}
		}
	}
	texts = rapid.Permutation(texts).Draw(t, "order")
	yaml += "    windows:\n"
	for _, text := range texts {
		yaml += "      - " + text + "\n"
	}
	s.rules = parsed(t, yaml)
	l.rule, l.plan = s.rules.List()[0], planOf(s.rules)
	l.span = l.rule.Longest().Milliseconds()
	for _, w := range l.rule.Windows {
		l.limits = append(l.limits, OracleWindow{Ms: w.Per.Milliseconds(), Limit: w.Limit})
		o.add(l, w)
	}
	s.clock.ms += 2*l.span + rapid.Int64Range(0, 40*86_400_000).Draw(t, "start") // after all events of the run before
	return l
}

// add adds a window of the rule.
func (o *mixedOracle) add(l *timeline, w windows.Window) {
	name, span := w.Algorithm, w.Per.Milliseconds()
	if w.Calendar.Unit != "" {
		name, l.calendars[span] = "calendar", w.Calendar
	}
	if l.s.serve == nil {
		o.addInProcess(l, span)
		return
	}
	p := o.parts[name]
	if p == nil {
		p = &mixedPart{Oracle: Oracle{Formula: formulaOf(name)}}
		o.parts[name] = p
	}
	p.spans = append(p.spans, span)
	if name == "calendar" {
		p.from = func(now int64) int64 {
			first := now
			for _, span := range p.spans {
				from, _ := l.calendars[span].Period(now)
				first = min(first, from)
			}
			return first
		}
		p.Formula = func(events []Happened, now, window int64) (units int64) {
			from, _ := l.calendars[window].Period(now)
			for _, e := range events {
				if e.Ms >= from {
					units += e.Count
				}
			}
			return units
		}
	}
}

// addInProcess adds a window that is counted in process: there one log counts all windows, and an event has
// the time that it has in that log.
func (o *mixedOracle) addInProcess(l *timeline, span int64) {
	p := o.parts["log"]
	if p == nil {
		p = &mixedPart{}
		o.parts["log"] = p
	}
	p.spans = append(p.spans, span)
	p.Formula = func(events []Happened, now, window int64) int64 {
		c, ok := l.calendars[window]
		if !ok {
			return Exact(events, now, window)
		}
		from, _ := c.Period(now)
		return Exact(events, now, now-from+1)
	}
}

// TestMixedWindowsEqualTheRecount runs rules whose windows have different algorithms, and the calendar,
// through the same timelines as rules with one algorithm, and then through reservations.
func TestMixedWindowsEqualTheRecount(t *testing.T) {
	check := func(t *testing.T, s *store) {
		eachTimeline(t, func(rt *rapid.T, prefix string) { newMixedTimeline(rt, s, prefix).run() })
	}
	eachRedis(t, nil, check)
	t.Run("in-process", func(t *testing.T) { check(t, localStore(t)) })
	t.Run("reserved", func(t *testing.T) {
		eachRedis(t, nil, func(t *testing.T, s *store) {
			eachTimeline(t, func(rt *rapid.T, prefix string) { newLedger(newMixedTimeline(rt, s, prefix)).run() })
		})
	})
}

// A live rule and shadow rules of the same and of another exact algorithm, with checks and
// folds: at each step, each rule returns the same as when this process counts it alone.
func TestShadowRulesCountAsTheLiveOne(t *testing.T) {
	limits := func(r *rapid.T, name string) (list []windows.Window) {
		for i := range rapid.IntRange(1, 3).Draw(r, name) {
			per := []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Second}[i]
			list = append(list, windows.Window{Limit: int64(rapid.IntRange(1, 20).Draw(r, "limit")), Per: per})
		}
		return list
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		round := 0
		rapid.Check(t, func(r *rapid.T) {
			round++
			prefix := fmt.Sprint("r", round, ":")
			s.rules = rulesOf(t,
				&windows.Rule{Name: "strict", Match: prefix + "*", Shadow: true, Windows: limits(r, "strict")},
				&windows.Rule{Name: "live", Match: prefix + "a*", Windows: limits(r, "live"), Alerts: []int{80}},
				&windows.Rule{Name: "other", Match: prefix + "*", Shadow: true, Algorithm: "sliding-log-zset",
					Windows: limits(r, "other")})
			s.clock.ms += 10_000
			local := counters.NewLocal(0, s.clock.now)
			for range rapid.IntRange(1, 25).Draw(r, "steps") {
				s.clock.ms += int64(rapid.IntRange(0, 60).Draw(r, "pause"))
				key := prefix + rapid.SampledFrom([]string{"a", "b"}).Draw(r, "key")
				plan := s.rules.Match(key)
				if rapid.IntRange(0, 2).Draw(r, "fold") == 0 {
					count := int64(rapid.IntRange(1, 5).Draw(r, "count"))
					s.fold(r, plan, counters.Event{Key: key, Ms: s.clock.ms, Count: count})
					local.Add(plan, key, s.clock.ms, count)
					continue
				}
				asks := []counters.Request{{Plan: plan, Key: key, Cost: int64(rapid.IntRange(1, 4).Draw(r, "cost"))}}
				got := s.decide(asks...)
				want, err := local.Check(context.Background(), asks)
				testkit.Must(t, err)
				got.Transitions = 0
				if diff := cmp.Diff(want, got); diff != "" {
					r.Fatalf("%s (-local +redis):\n%s", key, diff)
				}
			}
		})
	})
}
