package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
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
	throughProxies(t, reservers, rule, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		test(t, w, c.(client.Reserver), p)
	})
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
		s, err := n.Commit(ctx, first.ID, api.CommitRequest{Cost: &cost})
		if err != nil || s.State != api.ReservationCommitted || s.Keys[0].Windows[0].Used != 9 {
			t.Errorf("commit: %+v, %v", s, err)
		}
		second, err := n.Reserve(ctx, api.ReservationRequest{TTLMs: 1000, CheckRequest: api.CheckRequest{
			Checks: []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}}}})
		testkit.Must(t, err)
		w.wantUsed(t, "user:2", 10)
		s, err = n.Renew(ctx, second.ID, api.RenewRequest{TTLMs: 5000})
		if err != nil || s.State != api.ReservationOpen || s.ExpiresMs != w.clock.Load()+5000 {
			t.Errorf("renewed: %+v, %v", s, err)
		}
		if s, err := n.Cancel(ctx, second.ID); err != nil || s.State != api.ReservationCancelled {
			t.Errorf("cancelled: %+v, %v", s, err)
		}
		w.wantUsed(t, "user:1", 9)
		third, err := n.Reserve(ctx, one("user:1", 1))
		testkit.Must(t, err)
		none, settled := c.Cancel(ctx, first.ID)
		w.clock.Add(time.Minute.Milliseconds())
		_, noRule := c.Reserve(ctx, one("nobody", 1))
		_, expired := n.Renew(ctx, third.ID, api.RenewRequest{})
		_, noSuch := n.Commit(ctx, "0a-3", api.CommitRequest{})
		_, odd := n.Commit(ctx, "no/id?", api.CommitRequest{})
		for want, got := range map[error][]error{api.ErrNoRule: {noRule}, api.ErrReservationSettled: {settled},
			api.ErrReservationExpired: {expired}, api.ErrNoReservation: {noSuch, odd}} {
			for _, err := range got {
				if outcome(err) != api.NameOf(want) || none.ID != "" {
					t.Errorf("%+v, %v, want %v", none, err, want)
				}
			}
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

// A transport without reservations says so.
func TestReservationsOverGRPC(t *testing.T) {
	n := newClient(t, overGRPC(t, "127.0.0.1:1"), client.Config{})
	for _, kind := range []string{"reserve", "acquire"} {
		if err := ask(t.Context(), n, kind, api.CheckRequest{Key: "user:1"}); !errors.Is(err, client.ErrCannotReserve) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// A context that ended before the call, or for Redis one whose deadline had passed: nothing was sent.
func TestACallerWhoHasLeftChargesNothing(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, way := range reservers {
		w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute)
		c := way.open(t, w)
		contexts := map[error]context.Context{context.Canceled: left}
		if way.name == "redis" {
			contexts[context.DeadlineExceeded] = testkit.Late(t.Context())
		}
		for why, ctx := range contexts {
			for kind, of := range map[string]string{"check": "user:1", "all": "user:1", "each": "user:1",
				"reserve": "user:1", "commit": "0a-1"} {
				err := ask(ctx, c, kind, api.CheckRequest{Key: of})
				if outcome(err) != wasNotSent || !errors.Is(err, why) {
					t.Errorf("%s, %s: %v, want that nothing was sent: %v", way.name, kind, err, why)
				}
			}
		}
		w.wantUsed(t, "user:1", 0)
	}
}

// The error of a caller who left is that of its context, over every transport.
func TestTheErrorOfACallerWhoHasLeftIsThatOfItsContext(t *testing.T) {
	canceled, leave := context.WithCancel(t.Context())
	leave()
	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	for _, way := range transports {
		c := way.open(t, newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute))
		for want, ctx := range map[error]context.Context{context.Canceled: canceled, context.DeadlineExceeded: late} {
			for _, kind := range []string{"check", "all", "each"} {
				if err := ask(ctx, c, kind, api.CheckRequest{Key: "user:1"}); !errors.Is(err, want) ||
					outcome(err) != wasNotSent {
					t.Errorf("%s, %s: %v, want %v and that nothing was sent", way.name, kind, err, want)
				}
			}
		}
	}
}

// The error of one key does not name checks[0], which the caller did not give.
func TestTheErrorOfOneKeyNamesNoIndex(t *testing.T) {
	for _, way := range reservers {
		c := way.open(t, newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute))
		for _, kind := range []string{"check", "reserve"} {
			err := ask(t.Context(), c, kind, api.CheckRequest{Key: ""})
			if !errors.Is(err, api.ErrBadKey) || strings.Contains(err.Error(), "checks[") {
				t.Errorf("%s, %s: %v", way.name, kind, err)
			}
		}
	}
}
