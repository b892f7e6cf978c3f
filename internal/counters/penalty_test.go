package counters_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// punished is a model of a key with a penalty, in a few lines.
type punished struct {
	Oracle
	steps  []int64 // ms
	forget int64
	step   int   // the last penalty, from 1; 0: none
	ends   int64 // the end of the penalty
	until  int64 // the end of the present throttle; 0: none
}

const punishedLimit, punishedPer = 5, 1000

func (p *punished) admits(at, cost int64) bool {
	return at >= p.ends && p.Used("k", at, punishedPer)+cost <= punishedLimit
}

// charge counts units at once. A throttle that begins gets the next step, or the first. If the key had room before, the
// throttle before has ended, whether or not a sweep has seen that.
func (p *punished) charge(now, units int64) {
	free := now >= p.ends && p.Used("k", now, punishedPer) < punishedLimit
	p.Add("k", now, units)
	if !free && p.until > 0 || p.Used("k", now, punishedPer) < punishedLimit {
		return
	}
	if now >= p.ends+p.forget {
		p.step = 0
	}
	p.step = min(p.step+1, len(p.steps))
	p.ends = now + p.steps[p.step-1]
	p.until = max(p.free(now), p.ends)
}

// free returns when the key falls below its limit.
func (p *punished) free(now int64) int64 {
	for p.Used("k", now, punishedPer) >= punishedLimit {
		now++
	}
	return now
}

// sweep ends the throttle if its end has passed, or renews it. A renewal begins no new penalty.
func (p *punished) sweep(now int64) {
	if p.until > now {
		return
	}
	if p.until = max(p.free(now), p.ends); p.until <= now {
		p.until = 0
	}
}

// says fails unless a state has the penalty that is in force, and its windows have no room while one is.
func (p *punished) says(t interface{ Fatalf(string, ...any) }, now int64, got *api.Penalty, list []api.WindowState) {
	if now >= p.ends {
		if got != nil {
			t.Fatalf("at %d it tells of %+v, the model has %+v", now, got, p)
		}
		return
	}
	want := api.Penalty{Step: p.step, Of: len(p.steps), UntilMs: p.ends}
	if got == nil || *got != want {
		t.Fatalf("at %d it tells of %+v, want %+v", now, got, want)
	}
	for _, w := range list {
		if w.Remaining != 0 || w.NextFreeMs < p.ends-now || w.Used != p.Used("k", now, punishedPer) {
			t.Fatalf("at %d, in a penalty until %d, the window says %+v", now, p.ends, w)
		}
	}
}

// TestPenaltiesEqualTheModel: checks, events, resets, sweeps and the passing of time in any order.
func TestPenaltiesEqualTheModel(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Penalty: []time.Duration{ms(1200), ms(2500), ms(9000)},
		Forget: ms(4000), Windows: []windows.Window{{Limit: punishedLimit, Per: ms(punishedPer)}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		rapid.Check(t, func(rt *rapid.T) {
			p := &punished{steps: []int64{1200, 2500, 9000}, forget: 4000}
			s.clock.ms += 1_000_000
			s.sweep(rt)
			s.reset("k")
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				now := s.clock.ms
				step := []string{"advance", "end", "end", "check", "check", "check", "check", "fold", "reset"}
				switch rapid.SampledFrom(step).Draw(rt, "step") {
				case "advance":
					s.clock.ms += rapid.Int64Range(0, 3000).Draw(rt, "by")
				case "end": // a ms before, at or after what ends next
					next := rapid.SampledFrom([]int64{p.ends, p.until, p.ends + p.forget}).Draw(rt, "what")
					s.clock.ms = max(now, next+rapid.Int64Range(-1, 1).Draw(rt, "beside"))
				case "check":
					cost := rapid.Int64Range(1, punishedLimit).Draw(rt, "cost")
					want, v := p.admits(now, cost), s.check("k", cost)
					if v.Allowed != want {
						rt.Fatalf("a check of %d at %d: %+v, the model says %t: %+v", cost, now, v, want, p)
					}
					if retry := v.Items[0].RetryAfter.Milliseconds(); !want && (!p.admits(now+retry, cost) ||
						p.admits(now+retry-1, cost)) {
						rt.Fatalf("a check of %d at %d is to come again in %d ms: %+v", cost, now, retry, p)
					}
					if want {
						p.charge(now, cost)
					}
					p.says(rt, now, v.Items[0].Penalty, v.Items[0].Windows)
				case "fold":
					count := rapid.Int64Range(1, 3).Draw(rt, "count")
					s.fold(rt, nil, counters.Event{Key: "k", Ms: now, Count: count})
					p.charge(now, count)
				case "reset":
					_, err := s.Reset(t.Context(), s.rules.Match("k"), "k")
					testkit.Must(t, err)
					*p = punished{steps: p.steps, forget: p.forget}
				}
				peeked := s.peek("k")
				p.says(rt, s.clock.ms, peeked.Penalty, peeked.Windows)
				if rapid.IntRange(0, 2).Draw(rt, "sweep") > 0 {
					continue
				}
				s.sweep(rt)
				if p.until > 0 {
					p.sweep(s.clock.ms)
				}
				throttled, _, err := s.serve.ThrottledPage(t.Context(), s.rules, 10, "", nil)
				testkit.Must(t, err)
				if len(throttled) != min(1, int(p.until)) || len(throttled) == 1 && throttled[0].UntilMs != p.until {
					rt.Fatalf("at %d throttled are %+v, the model says %+v", s.clock.ms, throttled, p)
				}
				if len(throttled) == 1 {
					p.says(rt, s.clock.ms, throttled[0].Penalty, nil)
				}
			}
		})
	})
}
