package windows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// TestQuickPackedLogs is TestCounterEqualsRecount far from every level, where the quick script
// answers: logs grow from nothing to hundreds of records, age by some or by most of them, and
// clocks stand at the edges of windows.
func TestQuickPackedLogs(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		run, checks, before := 0, int64(0), s.serve.AnsweredQuick()
		rapid.Check(t, func(rt *rapid.T) {
			run++
			l := newTimeline(rt, s, packed, fmt.Sprintf("user:%d-", run))
			s.serve.LeaveToGeneral(false)
			rule := &windows.Rule{Name: "r", Match: "*", Algorithm: packed, Hold: time.Second}
			l.limits, l.span = nil, 0
			for _, w := range rapid.SliceOfNDistinct(rapid.Int64Range(20, 2000), 1, 4, rapid.ID).Draw(rt, "windows") {
				rule.Windows = append(rule.Windows, windows.Window{Limit: windows.MaxLimit, Per: ms(w)})
				l.limits = append(l.limits, streamtest.OracleWindow{Ms: w, Limit: windows.MaxLimit})
				l.span = max(l.span, w)
			}
			s.rules = rulesOf(rt, rule)
			l.rule, l.plan = s.rules.List()[0], planOf(s.rules)
			if rapid.Bool().Draw(rt, "settled") {
				settled(tale{t, s})
			}
			for range rapid.IntRange(1, 5).Draw(rt, "spells") {
				apart := rapid.SampledFrom([]int64{1, 2, 5, 17, 100}).Draw(rt, "apart")
				for i := range rapid.IntRange(1, 80).Draw(rt, "checks") {
					l.s.clock.ms += apart * int64(i%3) / 1 % 200
					if i%7 == 3 { // an edge: the oldest of a window is about to leave it
						if e := l.oracle.Oldest(l.keys[0], s.clock.ms-l.limits[i%len(l.limits)].Ms); e > 0 {
							s.clock.ms = max(s.clock.ms, e+l.limits[i%len(l.limits)].Ms+int64(i%3)-1)
						}
					}
					checks++
					l.quickCheck(l.keys[0], int64(1+i%4))
				}
				if rapid.IntRange(0, 3).Draw(rt, "pause") == 0 {
					s.clock.ms += rapid.Int64Range(0, l.span+1).Draw(rt, "for")
				}
			}
		})
		// Two of each run besides: with -short, some draws have few checks.
		if n := s.serve.AnsweredQuick() - before; n < checks*95/100-2*int64(run) {
			t.Errorf("%d of %d checks were answered quickly", n, checks)
		} else {
			t.Logf("%d of %d checks were answered quickly", n, checks)
		}
	})
}

// Keys at a steady pace, of which the window holds from a few records to some buffers full: so the
// records in the ring, and some of those in the buffer, have left it when the buffer moves.
func TestPackedLogsAtASteadyPace(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		rule := &windows.Rule{Name: "r", Match: "*", Algorithm: packed,
			Windows: []windows.Window{{Limit: windows.MaxLimit, Per: 100 * time.Millisecond}}}
		s.rules = rulesOf(t, rule)
		for _, general := range []bool{true, false} {
			s.serve.LeaveToGeneral(general)
			for pace := range int64(13) {
				key, oracle := fmt.Sprint("user:", general, pace), &streamtest.Oracle{Formula: streamtest.Exact}
				for i := range int64(150) {
					s.clock.ms++
					if i > 50 {
						s.clock.ms += pace
					}
					v, err := s.Check(t.Context(), []windows.Request{{Plan: planOf(s.rules), Key: key, Cost: 1}})
					testkit.Must(t, err)
					oracle.Add(key, s.clock.ms, 1)
					if got, want := v.Items[0].Windows[0].Used, oracle.Used(key, s.clock.ms, 100); got != want {
						t.Fatalf("general %t, every %d ms, check %d: used %d, recount says %d", general, pace+1, i, got,
							want)
					}
				}
			}
		}
	})
}

func (l *timeline) quickCheck(key string, cost int64) {
	v, err := l.s.Check(context.Background(), []windows.Request{{Plan: l.plan, Key: key, Cost: cost}})
	if err != nil || !v.Allowed {
		l.Fatal(v, err)
	}
	l.oracle.Add(key, l.oracle.Clock(key, l.s.clock.ms), cost)
	l.compare(key, v.Items[0])
}
