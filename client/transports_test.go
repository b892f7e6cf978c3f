package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func rule(name string, change func(*windows.Rule), ws ...windows.Window) *windows.Rule {
	r := &windows.Rule{Name: name, Match: name + ":*", Windows: ws}
	if change != nil {
		change(r)
	}
	return r
}

var (
	tenAMinute = rule("user", nil, windows.Window{Limit: 10, Per: time.Minute})
	twoWindows = rule("pair", nil, windows.Window{Limit: 5, Per: time.Minute}, windows.Window{Limit: 6, Per: time.Hour})
	watched    = rule("shadow", func(r *windows.Rule) { r.Shadow = true }, windows.Window{Limit: 1, Per: time.Minute})
)

// The same answers, whichever way one asks.
func TestEveryTransportAnswersAlike(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, w *world, c client.Checker, way way) {
		ctx := t.Context()
		window := func(limit, per, used, reset, more int64) api.WindowState {
			return api.WindowState{Limit: limit, WindowMs: per, Used: used, Remaining: limit - used, ResetMs: reset,
				NextFreeMs: more}
		}
		for i, s := range []struct {
			key, rule  string
			cost       int64
			after      time.Duration
			allowed    bool
			retry      int64
			windows    []api.WindowState
			shadow     []api.ShadowAnswer
			unmatched  bool
			wantSource api.Source
		}{
			{key: "pair:1", rule: "pair", cost: 3, allowed: true, windows: []api.WindowState{window(5, 60_000, 3,
				60_000, 60_000), window(6, 3_600_000, 3, 3_600_000, 3_600_000)}},
			{key: "pair:1", rule: "pair", cost: 3, after: 20 * time.Second, retry: 40_000,
				windows: []api.WindowState{window(5, 60_000, 3, 40_000, 40_000),
					window(6, 3_600_000, 3, 3_580_000, 3_580_000)}},
			{key: "pair:1", rule: "pair", cost: 0, allowed: true, windows: []api.WindowState{window(5, 60_000, 4,
				60_000, 40_000), window(6, 3_600_000, 4, 3_600_000, 3_580_000)}},
			{key: "shadow:1", cost: 1, allowed: true, shadow: []api.ShadowAnswer{{Rule: "shadow", Allowed: true,
				Windows: []api.WindowState{window(1, 60_000, 1, 60_000, 60_000)}}}},
			{key: "shadow:1", cost: 1, allowed: true, shadow: []api.ShadowAnswer{{Rule: "shadow",
				RetryAfterMs: 60_000, Windows: []api.WindowState{{Limit: 1, WindowMs: 60_000, Used: 2,
					ResetMs: 60_000, NextFreeMs: 60_000}}}}},
			{key: "other:1", cost: 1, allowed: true, unmatched: true, windows: []api.WindowState{}},
		} {
			w.clock.Add(s.after.Milliseconds())
			got, err := c.Check(ctx, api.CheckRequest{Key: s.key, Cost: s.cost})
			testkit.Must(t, err)
			want := api.CheckAnswer{Allowed: s.allowed, Rule: s.rule, Key: s.key, Cost: max(s.cost, 1),
				Windows: s.windows, RetryAfterMs: s.retry,
				Source: api.SourceRedis, Shadow: s.shadow}
			if s.shadow != nil {
				want.Windows, want.Note = []api.WindowState{}, "only shadow rules match this key"
			}
			if s.unmatched {
				want.Source, want.Note = api.SourcePolicy, "no rule matches this key"
			}
			ignore := cmp.Options{}
			switch {
			case !way.whole: // one window, and nobody says that a rule is a shadow
				ignore = append(ignore, cmpopts.IgnoreFields(api.CheckAnswer{}, "Source", "Windows", "Shadow", "Note",
					"RetryAfterMs"))
				left := int64(0) // what Envoy's service says of a denial
				if s.allowed && len(want.Windows) > 0 {
					left = want.Windows[0].Remaining
				}
				if got.RetryAfterMs < want.RetryAfterMs || len(want.Windows) > 0 && got.Windows[0].Remaining != left {
					t.Errorf("check %d: %+v, want %+v", i, got, want)
				}
			}
			if diff := cmp.Diff(want, got, ignore...); diff != "" {
				t.Errorf("check %d of %s (-want +got):\n%s", i, s.key, diff)
			}
		}
	}, twoWindows, watched)
}

// All or nothing: a denied request charges nobody.
func TestCheckAllOverEveryTransport(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, _ way) {
		ctx := t.Context()
		reqs := func(a, b int64) []api.CheckRequest {
			return []api.CheckRequest{{Key: "user:{x}1", Cost: a}, {Key: "user:{x}2", Cost: b}}
		}
		all, err := c.CheckAll(ctx, reqs(1, 10))
		testkit.Must(t, err)
		if !all.Allowed || len(all.Checks) != 2 || !all.Checks[0].Allowed || !all.Checks[1].Allowed {
			t.Errorf("%+v, want both admitted", all)
		}
		all, err = c.CheckAll(ctx, reqs(5, 1))
		testkit.Must(t, err)
		if all.Allowed || all.RetryAfterMs != 60_000 || all.Checks[0].Allowed || all.Checks[1].RetryAfterMs != 60_000 {
			t.Errorf("%+v, want both denied, for a minute", all)
		}
		k, err := c.Peek(ctx, "user:{x}1")
		testkit.Must(t, err)
		if k.Rule != "user" || k.Windows[0].Used != 1 {
			t.Errorf("%+v, want 1 used: what was denied charges nothing", k)
		}
	}, tenAMinute)
}

// Each by itself: one that is denied or wrong does not touch the others.
func TestCheckEachOverEveryTransport(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, _ way) {
		list, err := c.CheckEach(t.Context(), []api.CheckRequest{
			{Key: "user:1", Cost: 10}, {Key: "user:2", Cost: 11}, {Key: ""}, {Key: "user:3", Cost: -1}, {Key: "user:4"},
		})
		testkit.Must(t, err)
		if len(list) != 5 {
			t.Fatalf("%d answers to 5", len(list))
		}
		for i, want := range []error{nil, api.ErrCostExceedsLimit, api.ErrBadKey, api.ErrBadCount, nil} {
			if !errors.Is(list[i].Err, want) || want == nil && !list[i].Allowed {
				t.Errorf("answer %d: %+v, want the error %v", i, list[i], want)
			}
		}
		list, err = c.CheckEach(t.Context(), []api.CheckRequest{{Key: "user:1"}, {Key: "user:5"}})
		testkit.Must(t, err)
		if list[0].Allowed || list[0].RetryAfterMs != 60_000 || !list[1].Allowed {
			t.Errorf("%+v, want the first denied and the second admitted", list)
		}
	}, tenAMinute)
}

func TestErrorsKeepTheirIdentityOverEveryTransport(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, _ way) {
		for _, e := range []struct {
			req  api.CheckRequest
			want error
			says string
		}{
			{api.CheckRequest{Key: ""}, api.ErrBadKey, "empty"},
			{api.CheckRequest{Key: strings.Repeat("x", 513)}, api.ErrBadKey, "513"},
			{api.CheckRequest{Key: "a\x00b"}, api.ErrBadKey, "U+0000"},
			{api.CheckRequest{Key: "user:1", Cost: -1}, api.ErrBadCount, "-1"},
			{api.CheckRequest{Key: "user:1", Cost: 1_000_000_001}, api.ErrBadCount, "1000000001"},
			{api.CheckRequest{Key: "user:1", Cost: 11}, api.ErrCostExceedsLimit, `"user:1"`},
			{api.CheckRequest{Key: "user:1", Checks: []api.CheckRequest{}}, api.ErrBadRequest, "CheckAll"},
		} {
			_, err := c.Check(t.Context(), e.req)
			if !errors.Is(err, e.want) || !strings.Contains(fmt.Sprint(err), e.says) ||
				errors.Is(err, api.ErrNoAnswer) {
				t.Errorf("%.20q cost %d: error %v, want %v with %s", e.req.Key, e.req.Cost, err, e.want, e.says)
			}
			if _, err := c.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:9"}, e.req}); !errors.Is(err, e.want) {
				t.Errorf("all: %.20q cost %d: error %v, want %v", e.req.Key, e.req.Cost, err, e.want)
			}
		}
		if _, err := c.Peek(t.Context(), "other:1"); !errors.Is(err, api.ErrNoRule) {
			t.Errorf("peek without a rule: %v", err)
		}
		if _, err := c.Peek(t.Context(), ""); !errors.Is(err, api.ErrBadKey) {
			t.Errorf("peek at nothing: %v", err)
		}
		for _, none := range [][]api.CheckRequest{nil, {}} {
			if _, err := c.CheckAll(t.Context(), none); !errors.Is(err, api.ErrBadRequest) {
				t.Errorf("no checks: %v", err)
			}
			if _, err := c.CheckEach(t.Context(), none); !errors.Is(err, api.ErrBadRequest) {
				t.Errorf("no checks: %v", err)
			}
		}
	}, tenAMinute)
}

// Limit 50 per 10 s, a full burst on each side of a full ten seconds: 50 admitted.
func TestABoundaryOverEveryTransport(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, w *world, c client.Checker, _ way) {
		w.clock.Store(1_700_000_009_999)
		admitted := 0
		for range 2 {
			for range 50 {
				a, err := c.Check(t.Context(), api.CheckRequest{Key: "burst:1"})
				testkit.Must(t, err)
				if a.Allowed {
					admitted++
				}
			}
			w.clock.Add(2)
		}
		if admitted != 50 {
			t.Errorf("%d of 100 admitted, want 50", admitted)
		}
	}, rule("burst", nil, windows.Window{Limit: 50, Per: 10 * time.Second}))
}

// Where Redis is away and the rule says deny, the server has decided: no policy
// of ours overrules the operator. Straight to Redis nobody has, so ours does.
func TestRedisIsAway(t *testing.T) {
	denying := rule("deny", func(r *windows.Rule) { r.OnError = windows.OnErrorDeny },
		windows.Window{Limit: 5, Per: time.Minute})
	for _, way := range transports {
		t.Run(way.name, func(t *testing.T) {
			server := streamtest.OwnRedis(t)
			w := newWorld(t, streamtest.Connect(t, server.Addr()), 200*time.Millisecond, denying)
			c := way.open(t, w)
			server.Stop()
			_, err := c.Check(t.Context(), api.CheckRequest{Key: "deny:1"})
			decided := way.name != "redis"
			if !errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrNoAnswer) == decided {
				t.Errorf("error %v, decided %t", err, decided)
			}
			a, err := newClient(t, c, client.Config{Timeout: patience, Retries: -1}).Check(t.Context(),
				api.CheckRequest{Key: "deny:1"})
			if a.Allowed == decided || (err == nil) == decided {
				t.Errorf("%+v, %v, want it allowed by our policy where nobody else decided", a, err)
			}
			if _, err := c.Peek(t.Context(), "deny:1"); !errors.Is(err, api.ErrUnavailable) ||
				errors.Is(err, api.ErrOutcomeUnknown) {
				t.Errorf("peek: %v", err)
			}
		})
	}
}
