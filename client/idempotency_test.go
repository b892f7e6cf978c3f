package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
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

// A caller's bad key is the caller's error over every transport, and says nothing about the server: no policy answers,
// and the breaker stays closed.
func TestABadKeyIsTheCallersError(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, w *world, c client.Checker, way way) {
		n := newClient(t, c, client.Config{Timeout: patience})
		req := api.CheckRequest{Key: "user:1"}
		open, err := w.service.Reserve(t.Context(), api.ReservationRequest{CheckRequest: api.CheckRequest{
			Checks: []api.CheckRequest{{Key: "user:1", Cost: 1}}}, TTLMs: 60_000})
		testkit.Must(t, err)
		for _, key := range []string{"a\nb", "a\x7fb", "ü", "a b", `a"b`, strings.Repeat("k", 101)} {
			ctx := api.WithIdempotency(t.Context(), api.Idempotency{Key: key})
			for _, c := range []client.Checker{c, n} {
				a, one := c.Check(ctx, req)
				_, all := c.CheckAll(ctx, []api.CheckRequest{req})
				_, each := c.CheckEach(ctx, []api.CheckRequest{req})
				errs := []error{one, all, each}
				// Peek and Renew use no key, and take no harm from a bad one.
				_, unharmed := c.Peek(ctx, req.Key)
				testkit.Must(t, unharmed)
				if r, ok := c.(client.Reserver); ok && way.name != "grpc" && way.whole {
					_, err := r.Reserve(ctx, api.ReservationRequest{CheckRequest: req})
					errs = append(errs, err)
					_, unharmed = r.Renew(ctx, open.ID, api.RenewRequest{})
					testkit.Must(t, unharmed)
				}
				for i, err := range errs {
					if !errors.Is(err, api.ErrBadIdempotencyKey) || a.Allowed || errors.Is(err, api.ErrNoAnswer) {
						t.Errorf("key %q, call %d: %+v, %v, want a bad key", key, i, a, err)
					}
				}
			}
		}
		if a, err := n.Check(t.Context(), req); err != nil || a.Source == api.SourcePolicy {
			t.Errorf("%+v, %v, want the server's answer", a, err)
		}
	}, tenAMinute)
}

// idempotent is a stub that takes idempotency keys.
type idempotent struct{ stub }

func (*idempotent) TakesIdempotency() bool { return true }

// Only the first attempt with a key that the client has made may be answered from memory.
func TestAttemptsThatMayRepeat(t *testing.T) {
	mine := api.WithIdempotency(t.Context(), api.Idempotency{Key: "mine"})
	outer := api.WithIdempotency(t.Context(), api.Idempotency{Key: "another-clients", First: true})
	for _, c := range []struct {
		ctx  context.Context
		want []bool
	}{{t.Context(), []bool{false, true, true}}, {mine, []bool{true, true, true}}, {outer, []bool{false, true, true}}} {
		var got []bool
		s := &idempotent{}
		s.answer = func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
			got = append(got, api.MayRepeat(ctx))
			return lost(ctx, reqs)
		}
		_, err := newClient(t, s, client.Config{Timeout: patience}).Check(c.ctx, api.CheckRequest{Key: "k"})
		testkit.Must(t, err)
		if !slices.Equal(got, c.want) {
			t.Errorf("with the key %q: %t, want %t", api.IdempotencyKey(c.ctx).Key, got, c.want)
		}
	}
}
