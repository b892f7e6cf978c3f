package faults

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func (s *system) jetStream() jetstream.JetStream {
	s.t.Helper()
	return streamtest.JetStream(s.t, s.nats.URL())
}

// startGuard subscribes to throttle decisions as a service does, for the whole run.
func startGuard(t testing.TB, s *system) *guard.Guard {
	t.Helper()
	nc := streamtest.ConnectNATS(t, s.nats.URL())
	g, err := guard.New(nc, guard.Config{})
	testkit.Must(t, err)
	testkit.Background(t, func(ctx context.Context) {
		if err := g.Run(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return g
}

// verifyGuard: at the end the guard throttles the keys that are at their limit for
// the day, and no other. It gives how many these are.
func (v *verdict) verifyGuard(g *guard.Guard) (throttled int) {
	v.t.Helper()
	full := v.full()
	streamtest.Eventually(v.t, "the guard knows who is throttled", func() (bool, string) {
		wrong := ""
		for key := range v.logs {
			if g.Throttled(key) != full[key] {
				wrong = fmt.Sprintf("%s: throttled %v, its count says %v", key, g.Throttled(key), full[key])
			}
		}
		return wrong == "", wrong
	})
	return len(full)
}

// full returns the keys that are at their limit for the day.
func (v *verdict) full() map[string]bool {
	full := map[string]bool{}
	for key := range v.logs {
		if falls(key) {
			continue
		}
		if amounts, limit := v.levels(key); len(amounts) > 0 && amounts[len(amounts)-1] >= limit {
			full[key] = true
		}
	}
	return full
}
