package guard

import (
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
)

var _ client.Releases = (*Guard)(nil)

// Each way in which a key becomes free is a release. The channel holds one release until it is read.
func TestReleased(t *testing.T) {
	g, now := deaf(t, Config{})
	first, stopFirst := g.Released("k")
	second, stopSecond := g.Released("k")
	free := func(name string, want bool) {
		t.Helper()
		for _, c := range []<-chan struct{}{first, second} {
			got := false
			select {
			case <-c:
				got = true
			default:
			}
			if got != want {
				t.Errorf("%s: released %t, want %t", name, got, want)
			}
		}
	}
	g.apply(message(t, "api", "k", api.StateThrottled, t0, t0+60_000, false))
	g.apply(message(t, "api", "other", api.StateThrottled, t0, t0+60_000, false))
	g.apply(message(t, "api", "other", api.StateReleased, t0+1, 0, false))
	free("another key", false)
	g.apply(message(t, "api", "k", api.StateReleased, t0+1, 0, false))
	free("a release", true)
	free("read once", false)
	g.apply(message(t, "api", "k", api.StateThrottled, t0+2, t0+60_000, false))
	*now += 60_000
	sweepAll(g)
	free("its decision has expired", true)
	stopFirst()
	stopSecond()
	if len(g.waiting.keys) != 0 {
		t.Errorf("nobody waits, and it has %v", g.waiting.keys)
	}
}
