package client_test

import (
	"math/rand/v2"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Replies are lost at random. Every check is answered in the end, and Redis has exactly what the answers say was
// charged: no more, and no less.
func TestEachCheckIsChargedOnce(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		n := newClient(t, c, client.Config{Timeout: patience, Retries: 10})
		random := rand.New(rand.NewPCG(1, 2))
		charged, replayed := int64(0), 0
		count := func(a api.CheckAnswer, err error) {
			t.Helper()
			if err != nil || a.Source != api.SourceRedis {
				t.Fatalf("%+v, %v, expected Redis's answer", a, err)
			}
			if a.Allowed || a.Charged {
				charged += a.Cost
			}
			if a.Replayed {
				replayed++
			}
		}
		for i := range 60 {
			mode := []api.Mode{api.ModeCharge, api.ModeTake}[i%2]
			one := api.CheckRequest{Key: "user:1", Cost: 1 + random.Int64N(2), Mode: mode}
			p.LoseReplies(random.IntN(3))
			switch i % 5 {
			case 0:
				list, err := n.CheckEach(t.Context(), []api.CheckRequest{one, one})
				testkit.Must(t, err)
				for _, e := range list {
					count(e.CheckAnswer, e.Err)
				}
			case 1:
				all, err := n.CheckAll(t.Context(), []api.CheckRequest{one, {Key: "user:2", Mode: mode}})
				testkit.Must(t, err)
				count(all.Checks[0], nil)
			default:
				count(n.Check(t.Context(), one))
			}
		}
		p.Heal()
		k, err := w.service.Peek(t.Context(), "user:1")
		testkit.Must(t, err)
		if used := k.Windows[0].Used; used != charged {
			t.Errorf("%d used, the answers say %d", used, charged)
		}
		if replayed == 0 {
			t.Error("no lost answer was asked for again")
		}
	})
}
