package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// stub answers by a function, and counts its calls.
type stub struct {
	asked  int
	answer func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error)
}

func (s *stub) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	s.asked++
	return s.answer(ctx, reqs)
}

func (s *stub) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	all, err := s.CheckAll(ctx, []api.CheckRequest{req})
	if err != nil {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], nil
}

func (s *stub) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	list := make([]api.Each, len(reqs))
	for i, r := range reqs {
		list[i].CheckAnswer, list[i].Err = s.Check(ctx, r)
	}
	return list, nil
}

func (s *stub) Peek(ctx context.Context, key string) (api.KeyState, error) {
	_, err := s.Check(ctx, api.CheckRequest{Key: key})
	return api.KeyState{Key: key}, err
}

// admits answers like a server whose rule is the part of the key before the colon, with the given limits.
func admits(limits ...api.WindowState) func(context.Context, []api.CheckRequest) (api.ChecksAnswer, error) {
	return func(_ context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
		all := api.ChecksAnswer{Allowed: true, Atomic: true}
		for _, r := range reqs {
			name, _, _ := strings.Cut(r.Key, ":")
			all.Checks = append(all.Checks, api.CheckAnswer{Allowed: true, Rule: name, Key: r.Key,
				Cost: max(r.Cost, 1), Windows: limits, Source: api.SourceRedis})
		}
		return all, nil
	}
}

func fails(err error) func(context.Context, []api.CheckRequest) (api.ChecksAnswer, error) {
	return func(context.Context, []api.CheckRequest) (api.ChecksAnswer, error) { return api.ChecksAnswer{}, err }
}

var (
	errGone = errors.New("it is gone")
	down    = fails(transport.NotSent(errGone))
	lost    = fails(transport.Lost(errGone))
)

// taught returns a client that has seen keys of the rules allow, deny, local and other, all 10 per minute and 30 per
// hour, before its server went away.
func taught(t *testing.T, c client.Config) (*client.Client, *stub) {
	t.Helper()
	s := &stub{answer: admits(api.WindowState{Limit: 10, WindowMs: 60_000},
		api.WindowState{Limit: 30, WindowMs: 3_600_000})}
	c.Retries = -1
	c.RulePolicies = map[string]client.Policy{"allow": client.Allow, "deny": client.Deny, "local": client.Local}
	n := newClient(t, s, c)
	for _, rule := range []string{"allow", "deny", "local", "other"} {
		_, err := n.Check(t.Context(), api.CheckRequest{Key: rule + ":1"})
		testkit.Must(t, err)
	}
	s.answer = down
	return n, s
}

func TestThePolicyOfTheCallTheRuleAndTheClient(t *testing.T) {
	n, _ := taught(t, client.Config{Policy: client.Deny})
	for _, c := range []struct {
		through *client.Client
		key     string
		allowed bool
		source  api.Source
	}{
		{n, "allow:1", true, api.SourcePolicy},
		{n, "deny:1", false, api.SourcePolicy},
		{n, "local:1", true, api.SourceLocal},
		{n, "other:1", false, api.SourcePolicy}, // its rule has no policy of its own
		{n, "never:1", false, api.SourcePolicy}, // nobody knows its rule
		{n.With(client.Allow), "deny:1", true, api.SourcePolicy},
		{n.With(client.Deny), "allow:1", false, api.SourcePolicy},
		{n.With(client.Local), "allow:1", true, api.SourceLocal},
		{n.With(client.Local), "never:1", true, api.SourcePolicy}, // UnknownKeys
		{n.With(0), "deny:1", false, api.SourcePolicy},
	} {
		a, err := c.through.Check(t.Context(), api.CheckRequest{Key: c.key})
		if a.Allowed != c.allowed || a.Source != c.source || a.Key != c.key || a.Cost != 1 || a.Note == "" {
			t.Errorf("%s: %+v, want allowed %t from %s, with a note", c.key, a, c.allowed, c.source)
		}
		if c.allowed && err != nil || !c.allowed && !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: error %v", c.key, err)
		}
	}
}

// Local continues at the limit divided by the instances, in all windows, exactly.
func TestLocalCountsItsShare(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _ := taught(t, client.Config{Instances: 4, Now: func() int64 { return now }}) // 10 and 30 in 4: 2 and 7
	check := func(cost int64) api.CheckAnswer {
		t.Helper()
		a, err := n.Check(t.Context(), api.CheckRequest{Key: "local:1", Cost: cost})
		testkit.Must(t, err)
		return a
	}
	if a := check(2); !a.Allowed || a.Windows[0] != (api.WindowState{Limit: 2, WindowMs: 60_000, Used: 2,
		EmptyMs: 60_000, NextFreeMs: 60_000}) || a.Windows[1].Limit != 7 {
		t.Errorf("%+v, want 2 of 2 used, and the hour's share 7", a)
	}
	now += 15_000
	if a := check(1); a.Allowed || a.RetryAfterMs != 45_000 {
		t.Errorf("%+v, want it denied for 45 s", a)
	}
	if a := check(3); a.Allowed || a.RetryAfterMs != 0 {
		t.Errorf("%+v, want it denied and no time at which it would be admitted", a)
	}
}

// Each charge of a call is counted alone, also that of a key whose rule is not known.
func TestLocalCountsEachCharge(t *testing.T) {
	n, _ := taught(t, client.Config{Policy: client.Local})
	all, err := n.CheckAll(t.Context(), []api.CheckRequest{{Key: "local:1", Cost: 11, Mode: api.ModeCharge},
		{Key: "other:1", Cost: 9, Mode: api.ModeCharge}, {Key: "never:1", Cost: 9, Mode: api.ModeCharge}})
	testkit.Must(t, err)
	for i, a := range all.Checks {
		if isOver := i == 0; all.Allowed || a.Allowed == isOver || a.Charged != isOver {
			t.Errorf("%+v, want that it is over the limit: %t", a, isOver)
		}
	}
}

// If many instances share a limit, each has one unit at least. Config.RuleOf returns the limit without a server.
func TestLocalAdmitsAtLeastOneUnit(t *testing.T) {
	n := newClient(t, &stub{answer: down}, client.Config{Policy: client.Local, Instances: 1000,
		RuleOf: func(string) (client.Rule, bool) {
			return client.Rule{Name: "mine", Limits: []client.Limit{{Units: 50, Per: 10 * time.Second}}}, true
		}})
	for i, want := range []bool{true, false} {
		a, _ := n.Check(t.Context(), api.CheckRequest{Key: "any"})
		if a.Allowed != want || a.Source != api.SourceLocal {
			t.Errorf("check %d: %+v, want allowed %t", i, a, want)
		}
	}
}

// Several keys are decided together, also by policy: the strictest counts.
func TestTheStrictestPolicyDecidesForAll(t *testing.T) {
	for _, c := range []struct {
		keys    []string
		allowed bool
		source  api.Source
	}{
		{[]string{"allow:1", "deny:1"}, false, api.SourcePolicy},
		{[]string{"deny:1", "local:1"}, false, api.SourcePolicy},
		{[]string{"local:1", "allow:1"}, true, api.SourceLocal},
	} {
		n, _ := taught(t, client.Config{})
		var reqs []api.CheckRequest
		for _, key := range c.keys {
			reqs = append(reqs, api.CheckRequest{Key: key})
		}
		all, err := n.CheckAll(t.Context(), reqs)
		if all.Allowed != c.allowed || all.Checks[0].Source != c.source || all.Checks[1].Allowed != c.allowed ||
			(err == nil) != c.allowed {
			t.Errorf("%v: %+v, %v, want allowed %t from %s", c.keys, all, err, c.allowed, c.source)
		}
	}
}

func TestCheckEachFallsBackOneByOne(t *testing.T) {
	n, _ := taught(t, client.Config{})
	list, err := n.CheckEach(t.Context(), []api.CheckRequest{{Key: "allow:1"}, {Key: "deny:1"}, {Key: ""}})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if !list[0].Allowed || list[0].Err != nil || list[1].Allowed || !errors.Is(list[1].Err, api.ErrUnavailable) ||
		!errors.Is(list[2].Err, api.ErrBadKey) {
		t.Errorf("%+v, want allowed, denied, and a bad key", list)
	}
}

// No policy answers a request that is wrong, or an error that the server returns itself.
func TestErrorsThatNoPolicyAnswers(t *testing.T) {
	for _, why := range []error{api.ErrBadKey, api.ErrBadCount, api.ErrCostExceedsLimit, api.ErrUnavailable,
		api.ErrBadRequest} {
		s := &stub{answer: fails(fmt.Errorf("%w: so it is", why))}
		n := newClient(t, s, client.Config{})
		for range 20 { // and it opens no breaker
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "k"})
			if !errors.Is(err, why) || a.Source != "" || a.Allowed {
				t.Fatalf("%v: %+v, %v", why, a, err)
			}
		}
		if s.asked != 20 {
			t.Errorf("%v: asked %d times of 20", why, s.asked)
		}
	}
}

// A wrong token must be noticed: the error is returned together with the policy's answer.
func TestRefusedCredentialsAreTold(t *testing.T) {
	for _, why := range []error{api.ErrUnauthenticated, api.ErrForbidden} {
		n := newClient(t, &stub{answer: fails(why)}, client.Config{})
		a, err := n.Check(t.Context(), api.CheckRequest{Key: "k"})
		if !a.Allowed || a.Source != api.SourcePolicy || !errors.Is(err, why) {
			t.Errorf("%v: %+v, %v", why, a, err)
		}
	}
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  func(context.Context, []api.CheckRequest) (api.ChecksAnswer, error)
		retries int
		asked   int
	}{
		{"not sent", down, 0, 3}, {"not sent, more", down, 4, 5}, {"not sent, none", down, -1, 1}, {"lost", lost, 4, 1},
	} {
		s := &stub{answer: c.answer}
		n := newClient(t, s, client.Config{Retries: c.retries, Timeout: patience})
		if _, err := n.Check(t.Context(), api.CheckRequest{Key: "k"}); err != nil || s.asked != c.asked {
			t.Errorf("%s: asked %d times, want %d; %v", c.name, s.asked, c.asked, err)
		}
	}
}

// After five failures no call is sent any more, except one now and then. When that one is answered, all calls are
// sent. While nobody answers, nothing is known about the rules: Policy decides, and not UnmatchedKeys.
func TestBreaker(t *testing.T) {
	for name, answer := range map[string]func(context.Context, []api.CheckRequest) (api.ChecksAnswer,
		error){"not sent": down, "lost": lost} {
		var fallbacks int
		s := &stub{answer: answer}
		n := newClient(t, s, client.Config{Retries: -1, UnmatchedKeys: client.Deny,
			OnFallback: func(p client.Policy, why error) {
				if fallbacks++; p != client.Allow || why == nil {
					t.Errorf("told of %v, %v", p, why)
				}
			}})
		for range 50 {
			if a, err := n.Check(t.Context(), api.CheckRequest{Key: "k"}); !a.Allowed || err != nil {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		if s.asked < 5 || s.asked > 7 || fallbacks != 50 {
			t.Errorf("%s: asked %d times of 50, want the first 5 and hardly more; %d fallbacks told", name, s.asked,
				fallbacks)
		}
		s.answer = admits()
		streamtest.Eventually(t, patience, "it is asked again", func() (bool, string) {
			a, _ := n.Check(t.Context(), api.CheckRequest{Key: "k"})
			return a.Source == api.SourceRedis, a.Note
		})
	}
}

// While the breaker is open nothing is sent, and the errors say so. A caller that has left gets its own error too.
func TestErrorsOfAnOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reserver{idempotent: idempotent{stub{answer: lost}}}
		n := newClient(t, s, client.Config{Policy: client.Deny, Retries: -1})
		req := api.CheckRequest{Key: "k"}
		for range 5 {
			_, _ = n.Check(t.Context(), req)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, c := range []struct {
			ctx  context.Context
			want []error
		}{
			{t.Context(), []error{api.ErrNoAnswer, api.ErrNotSent, api.ErrUnavailable}},
			{gone, []error{context.Canceled, api.ErrNotSent}},
		} {
			_, peek := n.Peek(c.ctx, "k")
			_, reserve := n.Reserve(c.ctx, api.ReservationRequest{CheckRequest: req})
			_, one := n.Check(c.ctx, req)
			_, all := n.CheckAll(c.ctx, []api.CheckRequest{req})
			each, err := n.CheckEach(c.ctx, []api.CheckRequest{req})
			if err == nil {
				err = each[0].Err
			}
			for i, err := range []error{peek, reserve, one, all, err} {
				for _, want := range c.want {
					if !errors.Is(err, want) || errors.Is(err, api.ErrOutcomeUnknown) {
						t.Errorf("call %d: %v, want %v", i, err, want)
					}
				}
			}
		}
		badRequests(t, n)
	})
}

// badRequests asks for what no server accepts: each error is that of the request, and none is the breaker's.
func badRequests(t *testing.T, n *client.Client) {
	t.Helper()
	ctx := t.Context()
	keyed := api.WithIdempotency(ctx, api.Idempotency{Key: "a b"})
	reserve := func(ctx context.Context, key string, cost int64) error {
		_, err := n.Reserve(ctx, one(key, cost))
		return err
	}
	_, check := n.Check(keyed, api.CheckRequest{Key: "k"})
	_, peek := n.Peek(ctx, "")
	_, acquire := n.Acquire(ctx, "", 1)
	_, commit := n.Commit(ctx, "", api.CommitRequest{})
	_, cancel := n.Cancel(ctx, "")
	_, renew := n.Renew(ctx, "", api.RenewRequest{})
	for i, c := range []struct{ err, want error }{
		{check, api.ErrBadIdempotencyKey}, {reserve(keyed, "k", 1), api.ErrBadIdempotencyKey}, {peek, api.ErrBadKey},
		{reserve(ctx, "", 1), api.ErrBadKey}, {reserve(ctx, "k", -3), api.ErrBadCount}, {acquire, api.ErrBadKey},
		{commit, api.ErrNoReservation}, {cancel, api.ErrNoReservation}, {renew, api.ErrNoReservation},
	} {
		if !errors.Is(c.err, c.want) || errors.Is(c.err, api.ErrNoAnswer) {
			t.Errorf("bad request %d: %v, want %v", i, c.err, c.want)
		}
	}
}

// A caller that leaves gets its own error, no policy, and opens no breaker. Otherwise a caller that can choose a
// deadline could make the policy answer all others.
func TestCallersWhoLeave(t *testing.T) {
	s := &stub{answer: func(ctx context.Context, _ []api.CheckRequest) (api.ChecksAnswer, error) {
		<-ctx.Done()
		return api.ChecksAnswer{}, transport.Lost(ctx.Err())
	}}
	n := newClient(t, s, client.Config{Timeout: patience})
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		want := context.Canceled
		if i%2 == 0 {
			ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
			want = context.DeadlineExceeded
		} else {
			cancel()
		}
		a, err := n.Check(ctx, api.CheckRequest{Key: "k"})
		cancel()
		if !errors.Is(err, want) || a.Allowed || a.Source != "" {
			t.Errorf("%+v, %v, want %v alone", a, err, want)
		}
	}
	if s.asked != 20 {
		t.Errorf("asked %d times of 20: the breaker is open", s.asked)
	}
}

// Local counts what is charged: of a rule with an in-flight window it counts the other windows.
func TestLocalLeavesOutInFlightWindows(t *testing.T) {
	s := &stub{answer: admits(api.WindowState{Limit: 1, WindowKind: api.WindowKind{InFlight: true}},
		api.WindowState{Limit: 2, WindowMs: 60_000})}
	n := newClient(t, s, client.Config{Policy: client.Local, UnknownKeys: client.Deny, Retries: -1})
	look := api.CheckRequest{Key: "job:1", Mode: api.ModeLook}
	if _, err := n.Check(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	s.answer = down
	for i, allowed := range []bool{true, true, false} {
		a, _ := n.Check(t.Context(), api.CheckRequest{Key: "job:1"})
		if a.Allowed != allowed || a.Source != api.SourceLocal || len(a.Windows) != 1 {
			t.Errorf("%d: %+v, want allowed %t by the window of a minute", i, a, allowed)
		}
	}
}

// The number of keys that are remembered and counted is bounded; the oldest are removed.
func TestKeysAreBounded(t *testing.T) {
	s := &stub{answer: admits(api.WindowState{Limit: 1, WindowMs: 60_000})}
	n := newClient(t, s, client.Config{Policy: client.Local, UnknownKeys: client.Deny, KnownKeys: 2, LocalKeys: 1,
		Retries: -1})
	for _, key := range []string{"r:1", "r:2", "r:3"} {
		if _, err := n.Check(t.Context(), api.CheckRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	s.answer = down
	for i, c := range []struct {
		key     string
		allowed bool
	}{
		{"r:1", false}, // forgotten: UnknownKeys
		{"r:2", true}, {"r:2", false},
		{"r:3", true}, {"r:2", true}, // r:3 has taken its place, and its count with it
	} {
		if a, _ := n.Check(t.Context(), api.CheckRequest{Key: c.key}); a.Allowed != c.allowed {
			t.Errorf("%d: %+v, want allowed %t", i, a, c.allowed)
		}
	}
}

// When the server's rule has changed, Local continues with the new limits.
func TestLocalLearnsNewLimits(t *testing.T) {
	s := &stub{answer: admits(api.WindowState{Limit: 1, WindowMs: 60_000})}
	n := newClient(t, s, client.Config{Policy: client.Local, Retries: -1})
	_, _ = n.Check(t.Context(), api.CheckRequest{Key: "r:1"})
	s.answer = admits(api.WindowState{Limit: 3, WindowMs: 60_000})
	_, _ = n.Check(t.Context(), api.CheckRequest{Key: "r:2"})
	s.answer = down
	if a, _ := n.Check(t.Context(), api.CheckRequest{Key: "r:1", Cost: 3}); !a.Allowed || a.Windows[0].Limit != 3 {
		t.Errorf("%+v, want 3 of 3", a)
	}
}

// An operator's limits are those of one key. The other keys of the rule keep the rule's.
func TestLocalKeepsAnOperatorsLimitsToTheirKey(t *testing.T) {
	for _, limit := range []int64{1, 10} {
		plain := admits(api.WindowState{Limit: 3, WindowMs: 60_000})
		s := &stub{answer: plain}
		n := newClient(t, s, client.Config{Policy: client.Local, Retries: -1})
		limitOf := func(key string) int64 {
			t.Helper()
			a, err := n.Check(t.Context(), api.CheckRequest{Key: key})
			testkit.Must(t, err)
			return a.Windows[0].Limit
		}
		limitOf("r:1")
		s.answer = func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
			all, err := admits(api.WindowState{Limit: limit, WindowMs: 60_000})(ctx, reqs)
			all.Checks[0].Override = "windows"
			return all, err
		}
		limitOf("r:own")
		s.answer = down
		if rule, own := limitOf("r:1"), limitOf("r:own"); rule != 3 || own != limit {
			t.Errorf("limit %d of the rule and %d of the key, want 3 and %d", rule, own, limit)
		}
		s.answer = plain
		limitOf("r:own") // the operator has cleared it
		s.answer = down
		if own := limitOf("r:own"); own != 3 {
			t.Errorf("limit %d after it was cleared, want 3", own)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []client.Config{
		{Timeout: -1}, {Instances: -1}, {KnownKeys: -1}, {LocalKeys: -1}, {Policy: 4}, {UnknownKeys: client.Local},
		{RulePolicies: map[string]client.Policy{"x": 9}}, {Leases: -1}, {Denials: -1},
		{Leases: 5}, // a stub has no leases
	} {
		if _, err := client.New(&stub{}, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, err := client.New(nil, client.Config{}); err == nil {
		t.Error("no Checker was taken")
	}
}
