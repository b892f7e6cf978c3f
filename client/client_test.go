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
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// stub answers by a function, and counts its calls.
type stub struct {
	asked  int
	answer answer
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
func admits(limits ...api.WindowState) answer {
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

func fails(err error) answer {
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

// No policy answers a request that is wrong, or an error that the server returns itself. A wrong token must be noticed:
// its error is returned together with the policy's answer. If the server works and nobody decided, the policy decides.
// None of them opens the breaker.
func TestErrorsOfTheServer(t *testing.T) {
	for why, source := range map[error]api.Source{api.ErrBadKey: "", api.ErrBadCount: "", api.ErrCostExceedsLimit: "",
		api.ErrUnavailable: "", api.ErrBadRequest: "", api.ErrUnauthenticated: api.SourcePolicy,
		api.ErrForbidden: api.SourcePolicy, api.ErrNoAnswer: api.SourcePolicy} {
		s := &stub{answer: fails(fmt.Errorf("%w: so it is", why))}
		n := newClient(t, s, client.Config{})
		for range 20 {
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "k"})
			if errors.Is(err, why) == (why == api.ErrNoAnswer) || a.Source != source || a.Allowed != (source != "") {
				t.Fatalf("%v: %+v, %v", why, a, err)
			}
		}
		if s.asked != 20 {
			t.Errorf("%v: asked %d times of 20", why, s.asked)
		}
	}
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  answer
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
	for name, answer := range map[string]answer{"not sent": down, "lost": lost} {
		synctest.Test(t, func(t *testing.T) {
			fallbacks := 0
			s := &stub{answer: answer}
			n := newClient(t, s, client.Config{Retries: -1, UnmatchedKeys: client.Deny,
				OnFallback: func(p client.Policy, why error) {
					if fallbacks++; p != client.Allow || why == nil {
						t.Errorf("told of %v, %v", p, why)
					}
				}})
			wantAnswers := func(times int, source api.Source, asked int) {
				t.Helper()
				for range times {
					a, err := n.Check(t.Context(), api.CheckRequest{Key: "k:1"})
					if !a.Allowed || err != nil || a.Source != source {
						t.Fatalf("%s: %+v, %v", name, a, err)
					}
				}
				if s.asked != asked {
					t.Errorf("%s: asked %d times, want %d", name, s.asked, asked)
				}
			}
			wantAnswers(50, api.SourcePolicy, 5)
			time.Sleep(time.Second) // of the bubble
			wantAnswers(50, api.SourcePolicy, 6)
			time.Sleep(time.Second)
			s.answer = admits()
			wantAnswers(50, api.SourceRedis, 56)
			if fallbacks != 100 {
				t.Errorf("%s: %d fallbacks told, want 100", name, fallbacks)
			}
		})
	}
}

// While the breaker is open nothing is sent, and the errors say so. A caller that has left gets its own error too, and
// a request that no server accepts gets the error of the request.
func TestErrorsOfAnOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reserver{idempotent: idempotent{stub{answer: lost}}}
		n := newClient(t, s, client.Config{Policy: client.Deny, Retries: -1})
		req, ctx := api.CheckRequest{Key: "k"}, t.Context()
		for range 5 {
			_, _ = n.Check(ctx, req)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		for _, kind := range []string{"peek", "reserve", "check", "all", "each"} {
			if err := ask(ctx, n, kind, req); outcome(err) != wasNotSent {
				t.Errorf("%s: %v, want that it was not sent", kind, err)
			}
			if err := ask(gone, n, kind, req); !errors.Is(err, context.Canceled) || outcome(err) != wasNotSent {
				t.Errorf("%s of a caller that has left: %v", kind, err)
			}
		}
		keyed := api.WithIdempotency(ctx, api.Idempotency{Key: "a b"})
		for _, c := range []struct {
			ctx  context.Context
			kind string
			req  api.CheckRequest
			want error
		}{
			{keyed, "check", req, api.ErrBadIdempotencyKey}, {keyed, "reserve", req, api.ErrBadIdempotencyKey},
			{ctx, "peek", api.CheckRequest{}, api.ErrBadKey}, {ctx, "reserve", api.CheckRequest{}, api.ErrBadKey},
			{ctx, "reserve", api.CheckRequest{Key: "k", Cost: -3}, api.ErrBadCount},
			{ctx, "acquire", api.CheckRequest{}, api.ErrBadKey},
			{ctx, "commit", api.CheckRequest{}, api.ErrNoReservation},
			{ctx, "cancel", api.CheckRequest{}, api.ErrNoReservation},
			{ctx, "renew", api.CheckRequest{}, api.ErrNoReservation},
		} {
			if err := ask(c.ctx, n, c.kind, c.req); outcome(err) != api.NameOf(c.want) {
				t.Errorf("%s: %v, want %v", c.kind, err, c.want)
			}
		}
		for _, bad := range []api.ReservationRequest{
			{CheckRequest: req, TTLMs: -1}, {CheckRequest: api.CheckRequest{Key: "k", Mode: api.ModeLook}},
			{CheckRequest: api.CheckRequest{Checks: []api.CheckRequest{{Key: "k", Mode: api.ModeLook}}}},
			{CheckRequest: api.CheckRequest{Checks: []api.CheckRequest{}}},
			{CheckRequest: api.CheckRequest{Key: "k", Checks: []api.CheckRequest{req}}},
		} {
			if _, err := n.Reserve(ctx, bad); outcome(err) != api.NameOf(api.ErrBadRequest) {
				t.Errorf("reserve %+v: %v", bad, err)
			}
		}
	})
}

// A caller that leaves gets its own error, no policy, and opens no breaker. Otherwise a caller that can choose a
// deadline could make the policy answer all others.
func TestCallersWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{answer: func(ctx context.Context, _ []api.CheckRequest) (api.ChecksAnswer, error) {
			<-ctx.Done()
			return api.ChecksAnswer{}, transport.Lost(ctx.Err())
		}}
		n := newClient(t, s, client.Config{Timeout: patience})
		left, leave := context.WithCancel(t.Context())
		leave()
		for range 10 {
			late, end := context.WithTimeout(t.Context(), time.Millisecond)
			defer end()
			for ctx, want := range map[context.Context]error{left: context.Canceled, late: context.DeadlineExceeded} {
				a, err := n.Check(ctx, api.CheckRequest{Key: "k"})
				if !errors.Is(err, want) || a.Allowed || a.Source != "" {
					t.Errorf("%+v, %v, want %v alone", a, err, want)
				}
			}
		}
		if s.asked != 20 {
			t.Errorf("asked %d times of 20: the breaker is open", s.asked)
		}
	})
}

// localStep is a check of a key, and what the client answers.
type localStep struct {
	key    string
	server answer // nil: it is away
	want   string // the limits of its windows, or the policy if there are none; and whether it is allowed
}

func TestWhatLocalKnows(t *testing.T) {
	minute := func(limit int64) answer { return admits(api.WindowState{Limit: limit, WindowMs: 60_000}) }
	own := func(limit int64) answer { // an operator has set it
		return func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
			all, err := minute(limit)(ctx, reqs)
			all.Checks[0].Override = "windows"
			return all, err
		}
	}
	learns := func(limit int64, has string) []localStep {
		return []localStep{{"r:1", minute(3), "3 true"}, {"r:own", own(limit), has}, {"r:1", nil, "3 true"},
			{"r:own", nil, has}, {"r:own", minute(3), "3 true"}, {"r:own", nil, "3 true"}, // it was cleared
			{"r:2", minute(4), "4 true"}, {"r:1", nil, "4 true"}} // the rule has changed
	}
	slots := admits(api.WindowState{Limit: 1, WindowKind: api.WindowKind{InFlight: true}},
		api.WindowState{Limit: 2, WindowMs: 60_000})
	for name, c := range map[string]struct {
		config client.Config
		steps  []localStep
	}{
		"an operator's limits are those of one key": {client.Config{}, learns(1, "1 true")},
		"higher ones": {client.Config{}, learns(10, "10 true")},
		"windows in flight are left out": {client.Config{}, []localStep{{"r:1", slots, "1 2 true"},
			{"r:1", nil, "2 true"},
			{"r:1", nil, "2 true"}, {"r:1", nil, "2 false"}}},
		// The oldest keys are removed, from those that are remembered and from those that are counted.
		"keys are bounded": {client.Config{KnownKeys: 2, LocalKeys: 1}, []localStep{{"r:1", minute(1), "1 true"},
			{"r:2", minute(1), "1 true"}, {"r:3", minute(1), "1 true"}, {"r:1", nil, "policy false"},
			{"r:2", nil, "1 true"},
			{"r:2", nil, "1 false"}, {"r:3", nil, "1 true"}, {"r:2", nil, "1 true"}}},
		"RuleOf needs no server, and each of many instances has one unit": {client.Config{Instances: 1000,
			RuleOf: func(string) (client.Rule, bool) {
				return client.Rule{Name: "mine", Limits: []client.Limit{{Units: 50, Per: 10 * time.Second}}}, true
			}}, []localStep{{"any", nil, "1 true"}, {"any", nil, "1 false"}}},
	} {
		s := &stub{}
		c.config.Policy, c.config.UnknownKeys, c.config.Retries = client.Local, client.Deny, -1
		n := newClient(t, s, c.config)
		for i, step := range c.steps {
			if s.answer = step.server; step.server == nil {
				s.answer = down
			}
			a, _ := n.Check(t.Context(), api.CheckRequest{Key: step.key})
			got := ""
			for _, w := range a.Windows {
				got += fmt.Sprint(w.Limit, " ")
			}
			if len(a.Windows) == 0 {
				got = fmt.Sprint(a.Source, " ")
			}
			if got += fmt.Sprint(a.Allowed); got != step.want {
				t.Errorf("%s, step %d: %s, want %s", name, i, got, step.want)
			}
		}
	}
}

// A key that no rule matches has no limit, unless UnmatchedKeys denies it. A shadow rule matches it too.
func TestUnmatchedKeys(t *testing.T) {
	s := &stub{answer: func(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
		all, err := admits()(ctx, reqs)
		for i := range all.Checks {
			switch a := &all.Checks[i]; a.Rule {
			case "nobody":
				a.Rule = ""
			case "trial":
				a.Rule, a.Shadow = "", make([]api.ShadowAnswer, 1)
			}
		}
		return all, err
	}}
	ctx, nobody, matched := t.Context(), api.CheckRequest{Key: "nobody:1"}, api.CheckRequest{Key: "api:1"}
	if a, err := newClient(t, s, client.Config{}).Check(ctx, nobody); err != nil || !a.Allowed {
		t.Errorf("by default: %+v, %v", a, err)
	}
	config := client.Config{UnmatchedKeys: client.Deny}
	denies := newClient(t, s, config)
	refused := func(a api.CheckAnswer) bool {
		return !a.Allowed && !a.Charged && a.RetryAfterMs < 0 && a.Note != "" && a.Key == "nobody:1"
	}
	if a, err := denies.Check(ctx, nobody); err != nil || !refused(a) {
		t.Errorf("Check: %+v, %v", a, err)
	}
	if a, err := denies.Check(ctx, api.CheckRequest{Key: "trial:1"}); err != nil || !a.Allowed {
		t.Errorf("a key with a shadow rule: %+v, %v", a, err)
	}
	each, err := denies.CheckEach(ctx, []api.CheckRequest{nobody, matched})
	if err != nil || !refused(each[0].CheckAnswer) || !each[1].Allowed {
		t.Errorf("CheckEach: %+v, %v", each, err)
	}
	all, err := denies.CheckAll(ctx, []api.CheckRequest{nobody, matched})
	if err != nil || all.Allowed || all.RetryAfterMs != -1 || !refused(all.Checks[0]) || all.Checks[1].Allowed ||
		!all.Checks[1].Charged {
		t.Errorf("CheckAll: %+v, %v, want that it says what is charged", all, err)
	}
	slots := newClient(t, &reserver{idempotent{stub{answer: fails(api.ErrNoRule)}}}, config)
	if err := ask(ctx, slots, "acquire", nobody); !errors.Is(err, client.ErrOverLimit) {
		t.Errorf("Acquire: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []client.Config{
		{Timeout: -1}, {Instances: -1}, {KnownKeys: -1}, {LocalKeys: -1}, {Policy: 4}, {UnknownKeys: client.Local},
		{RulePolicies: map[string]client.Policy{"x": 9}}, {Leases: -1}, {Denials: -1}, {MaxWait: -1},
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
