package client_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

var (
	_ client.Reserver = (*client.HTTP)(nil)
	_ client.Reserver = (*client.Client)(nil)
	_ client.Reserver = (*direct.Redis)(nil)
)

// throughReserversProxy is throughEveryProxy for transports that take reservations.
func throughReserversProxy(t *testing.T, rule *windows.Rule,
	test func(t *testing.T, w *world, c client.Reserver, p *streamtest.Proxy)) {
	for _, way := range throughProxy {
		if way.name == "grpc" {
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience, rule)
			c, p := way.open(t, w)
			test(t, w, c.(client.Reserver), p)
		})
	}
}

func (w *world) wantUsed(t *testing.T, key string, want int64) {
	t.Helper()
	k, err := w.service.Peek(t.Context(), key)
	testkit.Must(t, err)
	if used := k.Windows[0].Used; used != want {
		t.Errorf("%s: %d used, want %d", key, used, want)
	}
}

func one(key string, cost int64) api.ReservationRequest {
	return api.ReservationRequest{CheckRequest: api.CheckRequest{Key: key, Cost: cost}}
}

// Reserved units count until the reservation is settled; errors say why one cannot be settled.
func TestReservations(t *testing.T) {
	throughReserversProxy(t, tenAMinute, func(t *testing.T, w *world, c client.Reserver, _ *streamtest.Proxy) {
		ctx, n := t.Context(), newClient(t, c, client.Config{Timeout: patience, Policy: client.Local})
		first, err := n.Reserve(ctx, one("user:1", 6))
		testkit.Must(t, err)
		if !first.Allowed || first.ID == "" || first.TTLMs != 60_000 || first.Checks[0].Windows[0].Used != 6 {
			t.Fatalf("%+v", first)
		}
		denied, err := n.Reserve(ctx, one("user:1", 5))
		if err != nil || denied.Allowed || denied.ID != "" || denied.RetryAfterMs <= 0 || len(denied.Checks) != 1 {
			t.Errorf("denied: %+v, %v", denied, err)
		}
		cost := int64(9)
		for range 2 {
			s, err := n.Commit(ctx, first.ID, api.CommitRequest{Cost: &cost})
			if err != nil || s.State != api.ReservationCommitted || s.Keys[0].Windows[0].Used != 9 {
				t.Errorf("commit: %+v, %v", s, err)
			}
		}
		if _, err := n.Cancel(ctx, first.ID); !errors.Is(err, api.ErrReservationSettled) {
			t.Errorf("cancelled after the commit: %v", err)
		}
		two := api.ReservationRequest{TTLMs: 1000, CheckRequest: api.CheckRequest{
			Checks: []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}}}}
		second, err := n.Reserve(ctx, two)
		testkit.Must(t, err)
		w.wantUsed(t, "user:1", 10)
		w.wantUsed(t, "user:2", 10)
		s, err := n.Renew(ctx, second.ID, api.RenewRequest{TTLMs: 5000})
		if err != nil || s.State != api.ReservationOpen || s.ExpiresMs != w.clock.Load()+5000 {
			t.Errorf("renewed: %+v, %v", s, err)
		}
		if s, err := n.Cancel(ctx, second.ID); err != nil || s.State != api.ReservationCancelled {
			t.Errorf("cancelled: %+v, %v", s, err)
		}
		w.wantUsed(t, "user:1", 9)
		third, err := n.Reserve(ctx, one("user:1", 1))
		testkit.Must(t, err)
		w.clock.Add(time.Minute.Milliseconds())
		if _, err := n.Renew(ctx, third.ID, api.RenewRequest{}); !errors.Is(err, api.ErrReservationExpired) {
			t.Errorf("renewed too late: %v", err)
		}
		for _, id := range []string{"", "0a-3", "no/id?"} {
			if _, err := n.Commit(ctx, id, api.CommitRequest{}); !errors.Is(err, api.ErrNoReservation) {
				t.Errorf("commit of %q: %v", id, err)
			}
		}
	})
}

// A request that no server accepts is refused over each transport with the same errors.
func TestBadReservations(t *testing.T) {
	slots := rule("job", nil, windows.Window{Limit: 2, Per: time.Minute, InFlight: true})
	throughReserversProxy(t, slots, func(t *testing.T, _ *world, c client.Reserver, _ *streamtest.Proxy) {
		for _, bad := range []struct {
			req  api.ReservationRequest
			want error
		}{
			{one("", 1), api.ErrBadKey},
			{one("job:1", -1), api.ErrBadCount},
			{one("job:1", 3), api.ErrCostExceedsLimit},
			{one("nobody", 1), api.ErrNoRule},
			{api.ReservationRequest{CheckRequest: api.CheckRequest{Key: "job:1"}, TTLMs: -1}, api.ErrBadRequest},
			{api.ReservationRequest{CheckRequest: api.CheckRequest{Key: "job:1"}, TTLMs: 1}, api.ErrBadRequest},
			{api.ReservationRequest{CheckRequest: api.CheckRequest{Key: "job:1", Mode: api.ModeLook}},
				api.ErrBadRequest},
			{api.ReservationRequest{CheckRequest: api.CheckRequest{Checks: []api.CheckRequest{}}}, api.ErrBadRequest},
			{api.ReservationRequest{CheckRequest: api.CheckRequest{Key: "job:1",
				Checks: []api.CheckRequest{{Key: "job:1"}}}}, api.ErrBadRequest},
		} {
			if got, err := c.Reserve(t.Context(), bad.req); !errors.Is(err, bad.want) || got.ID != "" {
				t.Errorf("%+v: %+v, %v, want %v", bad.req, got, err, bad.want)
			}
		}
		if _, err := c.Check(t.Context(), api.CheckRequest{Key: "job:1"}); !errors.Is(err, api.ErrNeedsReservation) {
			t.Errorf("a check: %v", err)
		}
	})
}

// Replies are lost at random. Each reservation is made once and settled once: what was charged
// is what was committed, and nothing is left outstanding.
func TestEachReservationIsMadeAndSettledOnce(t *testing.T) {
	ample := rule("user", nil, windows.Window{Limit: 1000, Per: time.Hour})
	throughReserversProxy(t, ample, func(t *testing.T, w *world, c client.Reserver, p *streamtest.Proxy) {
		ctx, n := t.Context(), newClient(t, c, client.Config{Timeout: patience, Retries: 10, NoIdempotency: true})
		random := rand.New(rand.NewPCG(3, 4))
		charged := int64(0)
		for i := range 40 {
			p.LoseReplies(random.IntN(3))
			r, err := n.Reserve(ctx, one("user:1", 5))
			testkit.Must(t, err)
			w.wantUsed(t, "user:1", charged+5)
			p.LoseReplies(random.IntN(3))
			switch cost := random.Int64N(8); i % 3 {
			case 0:
				_, err = n.Cancel(ctx, r.ID)
			case 1:
				_, err = n.Commit(ctx, r.ID, api.CommitRequest{Cost: &cost})
				charged += cost
			default:
				_, err = n.Renew(ctx, r.ID, api.RenewRequest{})
				testkit.Must(t, err)
				_, err = n.Commit(ctx, r.ID, api.CommitRequest{})
				charged += 5
			}
			testkit.Must(t, err)
			w.wantUsed(t, "user:1", charged)
		}
	})
}

// No policy grants a reservation.
func TestReservationsWhereNobodyAnswers(t *testing.T) {
	throughReserversProxy(t, tenAMinute, func(t *testing.T, _ *world, c client.Reserver, p *streamtest.Proxy) {
		p.Refuse()
		for _, policy := range []client.Policy{client.Allow, client.Deny, client.Local} {
			n := newClient(t, c, client.Config{Timeout: patience, Policy: policy})
			for i := range 8 { // the last ones find the breaker open
				r, err := n.Reserve(t.Context(), one("user:1", 1))
				if r.ID != "" || r.Allowed || !errors.Is(err, api.ErrUnavailable) || !errors.Is(err, api.ErrNoAnswer) {
					t.Fatalf("%s, %d: %+v, %v, want that nobody answers", policy, i, r, err)
				}
			}
		}
	})
}

// A transport without reservations says so.
func TestReservationsOverGRPC(t *testing.T) {
	n := newClient(t, overGRPC(t, "127.0.0.1:1"), client.Config{})
	if _, err := n.Reserve(t.Context(), one("user:1", 1)); !errors.Is(err, client.ErrCannotReserve) {
		t.Error(err)
	}
	if _, err := n.Acquire(t.Context(), "user:1", 1); !errors.Is(err, client.ErrCannotReserve) {
		t.Error(err)
	}
}
