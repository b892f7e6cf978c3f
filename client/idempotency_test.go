package client_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Replies are lost at random. Every check is answered in the end, and what the answers say was
// charged is what stands in Redis: no more, and no less.
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

// A look and a charge ask the same over every transport.
func TestModesOverEveryTransport(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, w *world, c client.Checker, way way) {
		if !way.whole {
			t.Skip("another server knows of no modes")
		}
		n := newClient(t, c, client.Config{Timeout: patience, Denials: 10})
		for i, ask := range []struct {
			mode api.Mode
			cost int64
			want string
		}{
			{api.ModeLook, 10, "true false 0 0"},
			{api.ModeTake, 10, "true false 10 0"},
			{api.ModeTake, 1, "false false 10 60000"},
			{api.ModeLook, 2, "false false 10 60000"},
			{api.ModeCharge, 5, "false true 15 60000"},
			{api.ModeCharge, 20, "false true 35 60000"},
		} {
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: ask.cost, Mode: ask.mode})
			testkit.Must(t, err)
			if got := fmt.Sprint(a.Allowed, a.Charged, " ", a.Windows[0].Used, a.RetryAfterMs); got != ask.want {
				t.Errorf("%d: %s of %d: %s, expected %s", i, ask.mode, ask.cost, got, ask.want)
			}
		}
		all, err := n.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:2", Cost: 11, Mode: api.ModeCharge},
			{Key: "user:3", Mode: api.ModeCharge}})
		testkit.Must(t, err)
		if all.Allowed || all.Checks[0].Allowed || !all.Checks[0].Charged || !all.Checks[1].Allowed {
			t.Errorf("charges of two keys: %+v", all)
		}
		all, err = n.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:3", Cost: 9, Mode: api.ModeLook},
			{Key: "user:4"}})
		if err != nil || !all.Allowed {
			t.Errorf("a look and a take: %+v, %v", all, err)
		}
		if k, err := w.service.Peek(t.Context(), "user:3"); err != nil || k.Windows[0].Used != 1 {
			t.Errorf("%+v, %v: a look charged", k, err)
		}
		_, err = n.Check(t.Context(), api.CheckRequest{Key: "user:1", Mode: "no"})
		if !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%v, expected a bad request", err)
		}
	}, tenAMinute)
}
