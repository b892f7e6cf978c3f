package counters_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
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
	rule := windows.Rule{Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		x := tale{t, s}
		s.clock.ms = start / 10_000 * 10_000 // a window begins
		take := func(n int64) bool { return x.check("user:1", n).Allowed }
		give := func(n, want int64) api.WindowState {
			t.Helper()
			given, st := x.refund("user:1", n)
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
		if a := s.rules.List()[0].Algorithm; (exact(a) || a == windows.SlidingBuckets) && take(1) {
			t.Error("ten were admitted 5 s ago, and one more is")
		}
	})
}

// The units given back are the oldest of the longest window. They also become free in
// each shorter window that still counts them.
func TestRefundInEveryWindow(t *testing.T) {
	rule := windows.Rule{Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second},
		{Limit: 100, Per: time.Minute}, {Limit: 100, Per: time.Hour}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		x := tale{t, s}
		s.clock.ms = start / 3_600_000 * 3_600_000 // all windows begin
		give := func(key string, n, given int64, used ...int64) {
			t.Helper()
			got, st := x.refund(key, n)
			if got != given {
				t.Errorf("%d given back, want %d", got, given)
			}
			for w, want := range used {
				if st.Windows[w].Used != want {
					t.Errorf("%d used in window %d, want %d", st.Windows[w].Used, w, want)
				}
			}
		}
		x.check("all", 3)
		give("all", 10, 3, 0, 0, 0)
		x.check("all", 4)
		give("all", 1, 1, 3, 3, 3)

		x.check("some", 4)
		s.clock.ms += 25_000 // the shortest window counts none of these
		x.check("some", 3)
		give("some", 3, 3, 3, 4, 4)
		give("some", 2, 2, 2, 2, 2)
	})
}

// A throttle that ends because units were given back is released when its hold has passed.
func TestRefundReleases(t *testing.T) {
	underEachAlgorithm(t, *apiRule(nil), func(t *testing.T, s *store) {
		x := tale{t, s}
		testkit.Must(t, s.learn())
		if v := x.check("user:1", 10); !v.Allowed || v.Transitions == 0 {
			t.Fatalf("%+v", v)
		}
		x.refund("user:1", 10)
		if due := x.due("user:1"); due > time.Second.Milliseconds() {
			t.Fatalf("due in %d ms, long after its hold", due)
		}
		x.after(time.Second)
		if list := throttled(t, s); len(list) != 0 {
			t.Errorf("still throttled: %v", list)
		}
	})
}

func throttled(t *testing.T, s *store) (list []string) {
	t.Helper()
	for k, err := range s.serve.Throttled(t.Context()) {
		testkit.Must(t, err)
		list = append(list, k.Key)
	}
	return list
}
