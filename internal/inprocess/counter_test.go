package inprocess

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

func charge(t testing.TB, c *Counter, key string) (State, bool) {
	t.Helper()
	rule := Rule{Name: "api", Windows: []Window{{Limit: 1_000_000, Per: 24 * time.Hour}}}
	states, allowed := c.Check([]Request{{Rule: rule, Key: key, Cost: 1}})
	return states[0], allowed
}

// However many keys come, the counter has at most maxKeys, and the key in use keeps its count.
func TestABoundedCounterKeepsWhatIsInUse(t *testing.T) {
	c := New(100, func() int64 { return 1000 })
	for i := range 20_000 {
		if s, allowed := charge(t, c, "in use"); !allowed || s.Windows[0].Used != int64(i)+1 {
			t.Fatalf("%+v, want %d used", s, i+1)
		}
		if _, allowed := charge(t, c, fmt.Sprint(i)); !allowed {
			t.Fatalf("key %d: denied", i)
		}
		if n := c.Len(); n != min(i+2, 100) {
			t.Fatalf("%d keys are held after %d, want at most 100", n, i+2)
		}
	}
}

// Unused keys are removed by later calls, also if the number of keys is not bounded.
func TestQuietKeysAreForgotten(t *testing.T) {
	now := int64(0)
	c := New(0, func() int64 { return now })
	rule := Rule{Name: "api", Windows: []Window{{Limit: 10, Per: time.Second}}}
	for i := range 10_000 {
		now += 10
		c.Check([]Request{{Rule: rule, Key: fmt.Sprint(i), Cost: 1}})
	}
	if n := c.Len(); n > 1000 {
		t.Errorf("%d keys are held, of which 100 are in their window", n)
	}
}

// One call is decided as a whole: the costs of one key are added up, a shadow rule
// denies nothing, and a denied call charges nothing.
func TestACallIsAllOrNothing(t *testing.T) {
	c := New(0, func() int64 { return 1_000_000 })
	ten := []Window{{Limit: 10, Per: time.Minute}}
	live, shadow := Rule{Name: "live", Windows: ten}, Rule{Name: "shadow", Shadow: true, Windows: ten}
	used := func(want int64) {
		t.Helper()
		if s := c.Peek(live, "a"); s.Windows[0] != api.NewWindowState(10, time.Minute, want, wait(want), wait(want)) {
			t.Errorf("%+v, want %d used", s.Windows[0], want)
		}
	}
	states, allowed := c.Check([]Request{{Rule: live, Key: "a", Cost: 6}, {Rule: live, Key: "a", Cost: 5},
		{Rule: live, Key: "b", Cost: 1}})
	if allowed || states[0].RetryAfterMs != 0 || states[1].RetryAfterMs != -1 || states[1].Cost != 11 {
		t.Errorf("6 and 5 of 10: allowed %t, %+v", allowed, states)
	}
	used(0)
	if _, allowed = c.Check([]Request{{Rule: live, Key: "a", Cost: 6}, {Rule: shadow, Key: "a", Cost: 11}}); !allowed {
		t.Error("denied by a shadow rule")
	}
	used(6)
	if !c.Reset("live", "a") || c.Reset("live", "a") {
		t.Error("want something to forget, once")
	}
	used(0)
}

func wait(used int64) time.Duration {
	if used == 0 {
		return 0
	}
	return time.Minute
}

// The totals of a log that never pauses stay as small as the units that it has.
func TestLogTotalsStaySmall(t *testing.T) {
	var l log
	const span, count = 1000, 1_000_000_000_000
	for now := int64(1); now < 20_000; now++ {
		l.trim(now, span)
		l.add(now, count)
		if used, first := l.sum(now, span); now >= span && (used != span*count || first != now-span+1) {
			t.Fatalf("at %d: used %d from %d", now, used, first)
		}
	}
	if l.total() > 2*span*count || len(l.entries) > 2*span {
		t.Fatalf("total %d in %d entries", l.total(), len(l.entries))
	}
}
