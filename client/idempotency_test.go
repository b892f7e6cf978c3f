package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// reserver is a stub that takes reservations too.
type reserver struct{ idempotent }

// CheckEach has one error for all if the answer is made by together.
func (r *reserver) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	list, err := r.stub.CheckEach(ctx, reqs)
	if err == nil && errors.Is(list[0].Err, errTogether) {
		return nil, list[0].Err
	}
	return list, err
}

var errTogether = errors.New("for all")

func together(a answer) answer {
	return func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
		all, err := a(ctx, reqs)
		return all, fmt.Errorf("%w: %w", errTogether, err)
	}
}

func (r *reserver) Reserve(ctx context.Context, req api.ReservationRequest) (a api.ReservationOfAll, err error) {
	a.ChecksAnswer, err = r.CheckAll(ctx, []api.CheckRequest{req.CheckRequest})
	return a, err
}

// Commit answers about the key user:1.
func (r *reserver) Commit(ctx context.Context, id string, _ api.CommitRequest) (api.Settlement, error) {
	state, err := r.Peek(ctx, "user:1")
	return api.Settlement{ID: id, State: api.ReservationCommitted, Keys: []api.KeyState{state}}, err
}

func (*reserver) Cancel(context.Context, string) (s api.Settlement, err error) { return s, nil }

func (*reserver) Renew(context.Context, string, api.RenewRequest) (s api.Settlement, err error) {
	return s, nil
}

type answer = func(context.Context, []api.CheckRequest) (api.ChecksAnswer, error)

// inTurn gives each call the next answer. The last answer stays.
func inTurn(script ...answer) answer {
	return func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
		now := script[0]
		script = script[min(1, len(script)-1):]
		return now(ctx, reqs)
	}
}

// A lost attempt may have charged. If no later attempt is answered, the outcome of the call is unknown, even if the
// last attempt was certainly not sent.
func TestALostAttemptMayHaveCharged(t *testing.T) {
	test := func(kind string, noKeys bool, want error, script ...answer) {
		t.Helper()
		s := &reserver{idempotent: idempotent{stub{answer: inTurn(script...)}}}
		n := newClient(t, s, client.Config{Policy: client.Deny, Timeout: patience, NoIdempotency: noKeys})
		err := ask(t.Context(), n, kind, api.CheckRequest{Key: "k"}, api.CheckRequest{Key: "l"})
		if !errors.Is(err, want) || want == nil && err != nil || want == api.ErrOutcomeUnknown &&
			(errors.Is(err, api.ErrNotSent) || !errors.Is(err, api.ErrUnavailable)) {
			t.Errorf("%s: %v, want %v", kind, err, want)
		}
	}
	for _, kind := range []string{"check", "all", "reserve", "acquire", "first of each"} {
		test(kind, false, api.ErrOutcomeUnknown, lost, down)
	}
	for _, kind := range []string{"check", "all", "reserve", "acquire"} {
		test(kind, false, api.ErrOutcomeUnknown, down, lost, down)
	}
	test("check", false, nil, lost, down, admits())
	test("check", false, api.ErrBadKey, lost, down, fails(api.ErrBadKey))
	test("check", false, api.ErrNotSent, down)
	test("each", false, api.ErrOutcomeUnknown, admits(), lost, down)
	test("first of each", false, nil, admits(), lost, down)
	test("each", false, api.ErrOutcomeUnknown, together(lost), together(lost), down) // and then one by one
	test("first of each", false, nil, admits(), lost, together(down))
	// Without keys, nothing is sent again if any of it was lost.
	test("each", true, api.ErrOutcomeUnknown, down, lost, admits())
	test("first of each", true, api.ErrNotSent, down, lost, admits())
}
