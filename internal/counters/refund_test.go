package counters_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// exact reports whether an algorithm counts exactly what happened.
func exact(algorithm string) bool { return lua.IsExact(algorithm) }

// refund gives units back if the count is exact. The recount removes the oldest units of
// the longest window, and from then on all must be as if they had never been counted.
func (l *timeline) refund(key string) {
	if l.s.serve == nil || l.noRefunds || !exact(l.rule.Algorithm) {
		return
	}
	n := rapid.Int64Range(1, 2*l.rule.Smallest()).Draw(l.T, "units")
	now := l.oracle.Clock(key, l.s.clock.ms)
	given, st, err := l.s.serve.Refund(context.Background(), l.plan, key, n)
	testkit.Must(l, err)
	if want := l.oracle.GiveBack(key, now, l.span, n); given != want {
		l.Fatalf("%d of %d units given back, recount says %d", given, n, want)
	}
	l.compare(key, st)
}

// No window of any algorithm ever admits more than its limit plus the units
// that were given back while the window still counted them.
func TestRefundAdmitsNoMoreThanTheLimit(t *testing.T) {
	for _, a := range windows.Algorithms {
		t.Run(a, func(t *testing.T) {
			rule := &windows.Rule{Name: "api", Match: "*", Algorithm: a,
				Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}}}
			eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
				r, ctx := planOf(s.rules), t.Context()
				s.clock.ms = start / 10_000 * 10_000 // a window begins
				take := func(n int64) bool {
					t.Helper()
					v, err := s.Check(ctx, []counters.Request{{Plan: r, Key: "user:1", Cost: n}})
					testkit.Must(t, err)
					return v.Allowed
				}
				give := func(n, want int64) api.WindowState {
					t.Helper()
					given, st, err := s.serve.Refund(ctx, r, "user:1", n)
					testkit.Must(t, err)
					if given != want {
						t.Errorf("%d given back, want %d", given, want)
					}
					return st.Windows[0]
				}
				give(3, 0) // nothing was spent
				if !take(6) {
					t.Fatal("6 of 10 denied")
				}
				s.clock.ms += 5000
				if !take(4) || take(1) {
					t.Fatal("4 more are the limit")
				}
				if use := give(3, 3); use.Used != 7 {
					t.Errorf("%d used after 3 of 10 came back", use.Used)
				}
				if take(4) || !take(3) || take(1) {
					t.Error("3 came back: 3 and no more are admitted")
				}
				give(100, 10)
				if !take(10) || take(1) {
					t.Error("all came back: 10 and no more are admitted")
				}
				// The first charges leave the window here. If a refund were an entry with
				// negative units of its own time, it would stay longer than the charges.
				s.clock.ms += 5000
				if exact(a) || a == windows.SlidingBuckets {
					if take(1) {
						t.Error("ten were admitted 5 s ago, and one more is")
					}
				}
			})
		})
	}
}

// The units given back are the oldest of the longest window. They also become free in
// each shorter window that still counts them.
func TestRefundInEveryWindow(t *testing.T) {
	for _, a := range windows.Algorithms {
		t.Run(a, func(t *testing.T) {
			rule := &windows.Rule{Name: "api", Match: "*", Algorithm: a, Windows: []windows.Window{
				{Limit: 100, Per: 10 * time.Second}, {Limit: 100, Per: time.Minute}, {Limit: 100, Per: time.Hour}}}
			eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
				r, ctx := planOf(s.rules), t.Context()
				s.clock.ms = start / 3_600_000 * 3_600_000 // all windows begin
				take := func(key string, n int64) {
					t.Helper()
					_, err := s.Check(ctx, []counters.Request{{Plan: r, Key: key, Cost: n}})
					testkit.Must(t, err)
				}
				give := func(key string, n, given int64, used ...int64) {
					t.Helper()
					got, st, err := s.serve.Refund(ctx, r, key, n)
					testkit.Must(t, err)
					if got != given {
						t.Errorf("%d given back, want %d", got, given)
					}
					for w, want := range used {
						if st.Windows[w].Used != want {
							t.Errorf("%d used in %s, want %d", st.Windows[w].Used, r.Live.Windows[w].Per, want)
						}
					}
				}
				take("all", 3)
				give("all", 10, 3, 0, 0, 0)
				take("all", 4)
				give("all", 1, 1, 3, 3, 3)

				take("some", 4)
				s.clock.ms += 25_000 // the shortest window counts none of these
				take("some", 3)
				give("some", 3, 3, 3, 4, 4)
				give("some", 2, 2, 2, 2, 2)
			})
		})
	}
}

// A throttle that ends because units were given back is released when its hold has passed.
func TestRefundReleases(t *testing.T) {
	for _, a := range windows.Algorithms {
		t.Run(a, func(t *testing.T) {
			eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Algorithm = a })), func(t *testing.T, s *store) {
				r, ctx := planOf(s.rules), t.Context()
				testkit.Must(t, s.learn())
				limit := r.Live.Windows[0].Limit
				v, err := s.Check(ctx, []counters.Request{{Plan: r, Key: "user:1", Cost: limit}})
				testkit.Must(t, err)
				if !v.Allowed || v.Transitions == 0 {
					t.Fatalf("%+v", v)
				}
				_, _, err = s.serve.Refund(ctx, r, "user:1", limit)
				testkit.Must(t, err)
				s.clock.ms += r.Live.Hold.Milliseconds()
				p := s.keys.Partition("user:1")
				due, err := s.store.DueRecords(ctx, p, s.clock.ms, 10)
				testkit.Must(t, err)
				if len(due) != 1 {
					t.Fatalf("due: %v, want the key, long before its window has passed", due)
				}
				_, _, err = s.store.Sweep(ctx, p, s.rules, due)
				testkit.Must(t, err)
				if list := throttled(t, s); len(list) != 0 {
					t.Errorf("still throttled: %v", list)
				}
			})
		})
	}
}

func throttled(t *testing.T, s *store) (list []string) {
	t.Helper()
	for k, err := range s.serve.Throttled(t.Context()) {
		testkit.Must(t, err)
		list = append(list, k.Key)
	}
	return list
}
