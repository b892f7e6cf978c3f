package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// counted counts the calls of a Checker.
type counted struct {
	client.Checker
	n atomic.Int64
}

func (c *counted) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.n.Add(1)
	return c.Checker.Check(ctx, req)
}

// A client that remembers denials asks once in 10 ms for a key that is denied, and its answers are the server's.
func TestDenialsAreRemembered(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute)
	asks := &counted{Checker: overHTTP(t, w.serveHTTP(t))}
	n := newClient(t, asks, client.Config{Denials: 10, Timeout: patience, Policy: client.Deny})
	check := func(cost int64) api.CheckAnswer {
		t.Helper()
		a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: cost})
		testkit.Must(t, err)
		return a
	}
	if spent := check(10); !spent.Allowed {
		t.Fatalf("%+v", spent)
	}
	begin := time.Now()
	for range 1000 {
		if a := check(1); a.Allowed || a.Windows[0].Used != 10 || a.RetryAfterMs > 60_000 || a.RetryAfterMs < 50_000 {
			t.Fatalf("%+v", a)
		}
	}
	most := int64(time.Since(begin)/(10*time.Millisecond)) + 2
	if asked := asks.n.Load() - 1; asked > most {
		t.Errorf("it asked %d times, expected at most %d", asked, most)
	}
	each, err := n.CheckEach(t.Context(), []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}, {Key: ""}})
	testkit.Must(t, err)
	if each[0].Allowed || !each[1].Allowed || !errors.Is(each[2].Err, api.ErrBadKey) {
		t.Errorf("%+v", each)
	}
	_, err = n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 11})
	if !errors.Is(err, api.ErrCostExceedsLimit) {
		t.Errorf("a cost above the limit: %v", err)
	}
}

// deniesUsers answers like a server: keys of the rule user are denied, and others are not.
func deniesUsers(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	all, err := admits(api.WindowState{Limit: 10, WindowMs: 60_000})(ctx, reqs)
	for i := range all.Checks {
		if a := &all.Checks[i]; a.Rule == "user" {
			a.Allowed, a.RetryAfterMs, all.Allowed = false, 60_000, false
		}
	}
	return all, err
}

// A rule can count what is denied, and only the server knows that. So memory answers only calls whose keys are all
// known to be denied. A call with an idempotency key may repeat an earlier one, and only the server knows its answer.
func TestCallsThatDenialsAnswer(t *testing.T) {
	type ask func(*client.Client, context.Context, []api.CheckRequest) (api.ChecksAnswer, error)
	one := func(c *client.Client, ctx context.Context, reqs []api.CheckRequest) (all api.ChecksAnswer, err error) {
		a, err := c.Check(ctx, reqs[0])
		return api.ChecksAnswer{Checks: []api.CheckAnswer{a}}, err
	}
	all := (*client.Client).CheckAll
	each := func(c *client.Client, ctx context.Context, reqs []api.CheckRequest) (all api.ChecksAnswer, err error) {
		list, err := c.CheckEach(ctx, reqs)
		for _, e := range list {
			all.Checks = append(all.Checks, e.CheckAnswer)
		}
		return all, err
	}
	keyed := func(ask ask) ask {
		return func(c *client.Client, ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
			return ask(c, api.WithIdempotency(ctx, api.Idempotency{Key: "mine"}), reqs)
		}
	}
	take, look := api.CheckRequest{Key: "user:1"}, api.CheckRequest{Key: "user:1", Mode: api.ModeLook}
	other := api.CheckRequest{Key: "other:1", Cost: 2}
	test := func(t *testing.T, first api.CheckRequest, ask ask, reqs []api.CheckRequest, asked int) {
		t.Helper()
		s := &stub{answer: deniesUsers}
		n := newClient(t, s, client.Config{Denials: 10})
		_, err := n.Check(t.Context(), first)
		testkit.Must(t, err)
		got, err := ask(n, t.Context(), reqs)
		testkit.Must(t, err)
		if len(got.Checks) != len(reqs) || got.Allowed || s.asked != 1+asked {
			t.Errorf("%+v, after the first check the server was asked %d times, want %d", got, s.asked-1, asked)
		}
	}
	synctest.Test(t, func(t *testing.T) { // the clock does not advance, so no denial expires
		test(t, take, one, []api.CheckRequest{take}, 0)
		test(t, take, one, []api.CheckRequest{look}, 0)
		test(t, take, all, []api.CheckRequest{take}, 0)
		test(t, take, all, []api.CheckRequest{take, take}, 1) // the costs of one key are added up
		test(t, take, each, []api.CheckRequest{take, take}, 0)
		test(t, take, all, []api.CheckRequest{other, take}, 1)
		test(t, take, each, []api.CheckRequest{other, take}, 1)
		test(t, take, keyed(one), []api.CheckRequest{take}, 1)
		test(t, take, keyed(all), []api.CheckRequest{take}, 1)
		test(t, take, keyed(each), []api.CheckRequest{other, take}, 2)
		test(t, look, one, []api.CheckRequest{take}, 1) // a look does not say whether its rule counts what is denied
	})
}

// A charge of a key makes its wait longer, so it ends what is remembered of the key.
func TestAChargeEndsWhatIsRemembered(t *testing.T) { synctest.Test(t, chargesEndDenials) }

func chargesEndDenials(t *testing.T) {
	s, inFlight := &reserver{}, func() {}
	s.answer = func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
		all, err := admits(api.WindowState{Limit: 10, WindowMs: 60_000})(ctx, reqs)
		for i := range all.Checks {
			if a := &all.Checks[i]; a.Cost > 1 {
				a.Allowed, a.RetryAfterMs, a.Charged = false, 60_000, a.Cost == 3
			}
		}
		inFlight()
		return all, err
	}
	type call = func(*client.Client) error
	take := func(reqs ...api.CheckRequest) call {
		return func(c *client.Client) error { _, err := c.CheckAll(t.Context(), reqs); return err }
	}
	each := func(reqs ...api.CheckRequest) call {
		return func(c *client.Client) error { _, err := c.CheckEach(t.Context(), reqs); return err }
	}
	check := func(req api.CheckRequest) call {
		return func(c *client.Client) error { _, err := c.Check(t.Context(), req); return err }
	}
	reserve := func(cost int64) call {
		return func(c *client.Client) error { _, err := c.Reserve(t.Context(), one("user:1", cost)); return err }
	}
	commit := func(c *client.Client) error { _, err := c.Commit(t.Context(), "1", api.CommitRequest{}); return err }
	small, large, other := one("user:1", 1).CheckRequest, one("user:1", 2).CheckRequest, one("other:1", 1).CheckRequest
	before := func(c *client.Client) error { // a denial that was asked for before the charge comes after it
		inFlight = func() {
			inFlight = func() {}
			time.Sleep(time.Millisecond) // of the bubble
			testkit.Must(t, check(small)(c))
		}
		_, err := c.Check(api.WithIdempotency(t.Context(), api.Idempotency{Key: "mine"}), large)
		return err
	}
	for name, c := range map[string]struct {
		call call
		ends bool
	}{
		"check": {check(small), true}, "all": {take(other, small), true}, "each": {each(other, small), true},
		"charge":  {check(api.CheckRequest{Key: "user:1", Cost: 2, Mode: api.ModeCharge}), true},
		"on_deny": {take(other, api.CheckRequest{Key: "user:1", Cost: 3}), true}, "asked before": {before, true},
		"reserve": {reserve(1), true}, "commit": {commit, true},
		"look": {check(api.CheckRequest{Key: "user:1", Mode: api.ModeLook}), false}, "other": {check(other), false},
		"denied": {reserve(2), false},
	} {
		n := newClient(t, s, client.Config{Denials: 10, NoIdempotency: true})
		testkit.Must(t, check(large)(n))
		testkit.Must(t, c.call(n))
		asked := s.asked
		testkit.Must(t, check(large)(n))
		if ended := s.asked > asked; ended != c.ends {
			t.Errorf("%s: what was remembered has ended: %t", name, ended)
		}
	}
}
