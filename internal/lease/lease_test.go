package lease

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
)

// testPlan has the time of a lease, and the shortest window.
type testPlan struct{ lease, window time.Duration }

func (p testPlan) LeaseTime() time.Duration      { return p.lease }
func (p testPlan) ShortestWindow() time.Duration { return p.window }
func (testPlan) Denies() bool                    { return true }

// testSource grants what is asked for, and counts what was charged.
type testSource struct {
	testPlan
	windows []api.WindowState // of each grant
	mu      sync.Mutex
	used    int64
}

func (s *testSource) Plan(string, Plan) (Plan, bool) { return s.testPlan, false }
func (*testSource) Ended(Plan)                       {}
func (s *testSource) Renew(plan Plan, ask api.LeaseRequest) (api.LeaseAnswer, Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += ask.Used
	return api.LeaseAnswer{ID: "a", Units: ask.Want, CheckAnswer: api.CheckAnswer{Windows: s.windows}}, plan, nil
}

// leased returns a list of two keys at most, of which k has a lease.
func leased(t *testing.T) (*List, *Lease, *testSource) {
	t.Helper()
	s := &testSource{testPlan: testPlan{10 * time.Second, time.Minute}}
	l := NewList(Config{Source: s, Keys: 2, Now: time.Now})
	t.Cleanup(l.Close)
	for range HotAsks {
		l.Ask("k", s.lease, 1, nil)
	}
	one := l.Held("k")
	if one == nil {
		t.Fatal("no lease of a hot key")
	}
	<-one.Start(1)
	return l, one, s
}

func TestOtherKeysDoNotEndALease(t *testing.T) {
	l, one, s := leased(t)
	for _, key := range []string{"x", "y", "z"} {
		l.Ask(key, s.lease, 1, nil)
	}
	if l.Held("k") != one || l.rates.Len() != 2 {
		t.Errorf("it has ended; the rates of %d keys are known, want 2", l.rates.Len())
	}
}

func TestCloseChargesWhatWasUsed(t *testing.T) {
	l, one, s := leased(t)
	for range 3 {
		if a, ok := one.Take(2); !ok || !a.Allowed {
			t.Fatalf("%+v, %v", a, ok)
		}
	}
	l.Close()
	if s.used != 6 || l.Len() != 0 {
		t.Errorf("%d units are charged and %d leases are left, want 6 and 0", s.used, l.Len())
	}
}

// oneTimer is the timer of the last renewal.
type oneTimer struct {
	at time.Time
	do func()
}

func (*oneTimer) Stop() bool { return true }

// A lease ends within the time of two leases after the last check, whatever the rate before and however often it is
// renewed. It does not end before, if the key is asked for ten times within the time of a lease.
func TestALeaseOfAKeyThatNobodyAsksForEnds(t *testing.T) {
	for _, remaining := range []int64{1000, 50, 1} { // of 1000: near the limit renewals are frequent
		for _, perLease := range []int{10, 20, 3000} {
			now, timer := time.Unix(1_700_000_000, 0), &oneTimer{}
			s := &testSource{testPlan: testPlan{10 * time.Second, 20 * time.Second},
				windows: []api.WindowState{{Limit: 1000, Remaining: remaining}}}
			l := NewList(Config{Source: s, Keys: 2, Now: func() time.Time { return now }})
			l.After = func(d time.Duration, do func()) Stopper { *timer = oneTimer{now.Add(d), do}; return timer }
			step := s.lease / time.Duration(perLease)
			advance := func() {
				for end := now.Add(step); ; timer.do() {
					if l.Wait(); l.Len() == 0 || timer.at.After(end) {
						now = end
						return
					}
					now = timer.at
				}
			}
			for i := range 4 * perLease {
				one := l.Ask("k", s.lease, 1, nil)
				if one == nil && i >= HotAsks {
					t.Fatalf("%d of 1000 remain, %d checks in a lease: it ended at check %d", remaining, perLease, i)
				} else if one != nil {
					one.Decide(t.Context(), 1, now, time.Time{})
				}
				advance()
			}
			last := now
			for l.Len() > 0 && now.Sub(last) < 10*s.lease {
				advance()
			}
			if idle := now.Sub(last); idle > 2*s.lease {
				t.Errorf("%d of 1000 remain, %d checks in a lease: it ended %v later", remaining, perLease, idle)
			}
		}
	}
}

func TestALeaseEndsWhileUnitsAreTaken(t *testing.T) {
	_, one, _ := leased(t)
	g := one.Grant()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20_000 {
			one.left.Store(3)
			one.grant.Store(nil)
			one.grant.Store(g)
		}
	}()
	for {
		one.Take(1)
		select {
		case <-ended:
			return
		default:
		}
	}
}

// Processes whose clocks and replies differ find the same moments by Redis's clock. A little more than a window after
// a moment there is another one, and no moment is far from the time that was asked for.
func TestRenewalsNearTheLimitAreAligned(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(from, to int64, what string) time.Duration {
			return time.Duration(rapid.Int64Range(from, to).Draw(rt, what)) * time.Millisecond
		}
		window := ms(100, 100_000, "window")
		plan := testPlan{min(ms(10, 10_000, "lease"), window), window}
		redisMs, phase := rapid.Int64Range(1<<40, 1<<41).Draw(rt, "redis"), rapid.Int64Range(0, 1<<32).Draw(rt, "phase")
		in := pace(plan)
		moment := func(g *Grant) (time.Duration, bool) { // by Redis's clock, since redisMs
			at := g.answered.Add(in - time.Duration(g.Answer.NowMs-redisMs)*time.Millisecond)
			to := g.align(at)
			if off := to.Sub(at); off.Abs() > in*3/4+1 {
				rt.Errorf("%v from when it was to be, a pace is %v", off, in)
			}
			return to.Sub(g.answered) + time.Duration(g.Answer.NowMs-redisMs)*time.Millisecond, to != at
		}
		answered := time.Unix(1_700_000_000, rapid.Int64Range(0, 1e9).Draw(rt, "answered"))
		one := &Grant{Plan: plan, phase: phase, answered: answered, Answer: api.LeaseAnswer{NowMs: redisMs}}
		other := &Grant{Plan: plan, phase: phase, answered: answered.Add(ms(-5000, 5000, "apart")),
			Answer: api.LeaseAnswer{NowMs: redisMs + rapid.Int64Range(0, 3).Draw(rt, "later")}}
		a, moved := moment(one)
		b, alsoMoved := moment(other)
		if moved && alsoMoved && (a-b).Abs() > 1 {
			rt.Errorf("%v and %v by Redis's clock", a, b)
		}
	})
}
