package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A denial is remembered for 10 ms, with the wait that is left, for its cost and larger ones. The server refuses a cost
// above the limit.
func TestDenialsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{answer: deniesUsers}
		n := newClient(t, s, client.Config{Denials: 10})
		for i, c := range []struct {
			after      time.Duration // the check before
			cost, wait int64
			asked      int // in all
		}{
			{0, 2, 60_000, 1}, {9 * time.Millisecond, 2, 59_991, 1}, {0, 10, 59_991, 1}, {0, 11, 60_000, 2},
			{0, 2, 60_000, 3}, {10 * time.Millisecond, 2, 60_000, 4}, {0, 1, 60_000, 5},
		} {
			time.Sleep(c.after) // of the bubble
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: c.cost})
			testkit.Must(t, err)
			if a.Allowed || a.Cost != c.cost || a.RetryAfterMs != c.wait || a.Windows[0].Limit != 10 ||
				s.asked != c.asked {
				t.Errorf("%d: %+v, asked %d times, want a wait of %d ms and %d", i, a, s.asked, c.wait, c.asked)
			}
		}
	})
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
	take, look := api.CheckRequest{Key: "user:1"}, api.CheckRequest{Key: "user:1", Mode: api.ModeLook}
	other := api.CheckRequest{Key: "other:1", Cost: 2}
	test := func(ctx context.Context, first api.CheckRequest, asked int, kind string, reqs ...api.CheckRequest) {
		t.Helper()
		s := &stub{answer: deniesUsers}
		n := newClient(t, s, client.Config{Denials: 10})
		testkit.Must(t, ask(ctx, n, "check", first))
		s.asked = 0
		testkit.Must(t, ask(ctx, n, kind, reqs...))
		if s.asked != asked {
			t.Errorf("%s of %+v after %+v: the server was asked %d times, want %d", kind, reqs, first, s.asked, asked)
		}
	}
	synctest.Test(t, func(t *testing.T) { // the clock does not advance, so no denial expires
		ctx, mine := t.Context(), api.WithIdempotency(t.Context(), api.Idempotency{Key: "mine"})
		test(ctx, take, 0, "check", take)
		test(ctx, take, 0, "check", look)
		test(ctx, take, 0, "all", take)
		test(ctx, take, 1, "all", take, take) // the costs of one key are added up
		test(ctx, take, 0, "each", take, take)
		test(ctx, take, 1, "all", other, take)
		test(ctx, take, 1, "each", other, take)
		test(ctx, take, 1, "each", take, api.CheckRequest{}) // the server refuses what is invalid
		test(mine, take, 1, "check", take)
		test(mine, take, 1, "all", take)
		test(mine, take, 2, "each", other, take)
		test(ctx, look, 1, "check", take) // a look does not say whether its rule counts what is denied
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
	call := func(kind string, reqs ...api.CheckRequest) func(*client.Client) error {
		return func(c *client.Client) error { return ask(t.Context(), c, kind, reqs...) }
	}
	small, large, other := one("user:1", 1).CheckRequest, one("user:1", 2).CheckRequest, one("other:1", 1).CheckRequest
	before := func(c *client.Client) error { // a denial that was asked for before the charge comes after it
		inFlight = func() {
			inFlight = func() {}
			time.Sleep(time.Millisecond) // of the bubble
			testkit.Must(t, call("check", small)(c))
		}
		_, err := c.Check(api.WithIdempotency(t.Context(), api.Idempotency{Key: "mine"}), large)
		return err
	}
	for name, c := range map[string]struct {
		call func(*client.Client) error
		ends bool
	}{
		"check": {call("check", small), true}, "all": {call("all", other, small), true},
		"each":    {call("each", other, small), true},
		"charge":  {call("check", api.CheckRequest{Key: "user:1", Cost: 2, Mode: api.ModeCharge}), true},
		"on_deny": {call("all", other, api.CheckRequest{Key: "user:1", Cost: 3}), true}, "asked before": {before, true},
		"reserve": {call("reserve", small), true}, "commit": {call("commit", api.CheckRequest{Key: "1"}), true},
		"look":  {call("check", api.CheckRequest{Key: "user:1", Mode: api.ModeLook}), false},
		"other": {call("check", other), false}, "denied": {call("reserve", large), false},
	} {
		n := newClient(t, s, client.Config{Denials: 10, NoIdempotency: true})
		testkit.Must(t, call("check", large)(n))
		testkit.Must(t, c.call(n))
		asked := s.asked
		testkit.Must(t, call("check", large)(n))
		if ended := s.asked > asked; ended != c.ends {
			t.Errorf("%s: what was remembered has ended: %t", name, ended)
		}
	}
}
