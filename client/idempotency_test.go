package client_test

import (
	"context"
	"errors"
	"fmt"
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

// reserver is a stub that takes reservations too.
type reserver struct {
	idempotent
	client.Reserver
}

func (r *reserver) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	return r.stub.Check(ctx, req)
}

func (r *reserver) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	return r.stub.CheckAll(ctx, reqs)
}

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

func (r *reserver) Peek(ctx context.Context, key string) (api.KeyState, error) {
	return r.stub.Peek(ctx, key)
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
	reqs := []api.CheckRequest{{Key: "k"}, {Key: "l"}}
	check := func(ctx context.Context, c *client.Client) error { _, err := c.Check(ctx, reqs[0]); return err }
	all := func(ctx context.Context, c *client.Client) error { _, err := c.CheckAll(ctx, reqs); return err }
	reserve := func(ctx context.Context, c *client.Client) error { _, err := c.Reserve(ctx, one("k", 1)); return err }
	acquire := func(ctx context.Context, c *client.Client) error { _, err := c.Acquire(ctx, "k", 1); return err }
	each := func(at int) func(ctx context.Context, c *client.Client) error {
		return func(ctx context.Context, c *client.Client) error {
			list, err := c.CheckEach(ctx, reqs)
			if err != nil {
				return err
			}
			return list[at].Err
		}
	}
	test := func(name string, call func(context.Context, *client.Client) error, config client.Config, want error,
		script ...answer) {
		t.Helper()
		config.Policy, config.Timeout = client.Deny, patience
		s := &reserver{idempotent: idempotent{stub{answer: inTurn(script...)}}}
		err := call(t.Context(), newClient(t, s, config))
		if !errors.Is(err, want) || want == nil && err != nil || want == api.ErrOutcomeUnknown &&
			(errors.Is(err, api.ErrNotSent) || !errors.Is(err, api.ErrUnavailable)) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	var config client.Config
	for name, call := range map[string]func(context.Context, *client.Client) error{"check": check, "all": all,
		"reserve": reserve, "acquire": acquire} {
		test(name+", then not sent", call, config, api.ErrOutcomeUnknown, lost, down)
		test(name+", the second is lost", call, config, api.ErrOutcomeUnknown, down, lost, down)
	}
	test("then answered", check, config, nil, lost, down, admits())
	test("then refused", check, config, api.ErrBadKey, lost, down, fails(api.ErrBadKey))
	test("never sent", check, config, api.ErrNotSent, down)
	test("each, then not sent", each(0), config, api.ErrOutcomeUnknown, lost, down)
	test("one of each is lost", each(1), config, api.ErrOutcomeUnknown, admits(), lost, down)
	test("the other was answered", each(0), config, nil, admits(), lost, down)
	test("not one by one, and then so", each(1), config, api.ErrOutcomeUnknown, together(lost), together(lost), down)
	test("one by one, and then not", each(0), config, nil, admits(), lost, together(down))
	// Without keys, nothing is sent again if any of it was lost.
	config.NoIdempotency = true
	test("each without keys", each(1), config, api.ErrOutcomeUnknown, down, lost, admits())
	test("and the other", each(0), config, api.ErrNotSent, down, lost, admits())
}
