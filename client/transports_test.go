package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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

// Another server of Envoy's service returns less: one window, no time to wait, and nothing about shadow rules.
// Decisions, and errors of a request, are the same.
func TestAServerWithoutTheDetail(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute, twoWindows, watched)
	c := overGRPC(t, w.serveGRPC(t, false))
	for i, s := range []struct {
		key, rule string
		cost      int64
		allowed   bool
		left      int64 // of the window that is told of; -1: none is
	}{
		{"pair:1", "pair", 3, true, 2}, {"pair:1", "pair", 3, false, 0}, {"pair:1", "pair", 0, true, 1},
		{"shadow:1", "", 1, true, -1}, {"shadow:1", "", 1, true, -1}, {"other:1", "", 1, true, -1},
	} {
		a, err := c.Check(t.Context(), api.CheckRequest{Key: s.key, Cost: s.cost})
		testkit.Must(t, err)
		left := int64(-1)
		if len(a.Windows) > 0 {
			left = a.Windows[0].Remaining
		}
		if a.Allowed != s.allowed || a.Rule != s.rule || a.Key != s.key || a.Cost != max(s.cost, 1) || left != s.left {
			t.Errorf("check %d: %+v, want %+v", i, a, s)
		}
	}
	all, err := c.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:1", Cost: 10}, {Key: "pair:1", Cost: 5}})
	testkit.Must(t, err)
	if all.Allowed || len(all.Checks) != 2 || all.Checks[0].Allowed {
		t.Errorf("%+v, want both denied", all)
	}
	list, err := c.CheckEach(t.Context(), []api.CheckRequest{
		{Key: "user:1", Cost: 10}, {Key: "user:2", Cost: 11}, {Key: ""}, {Key: "user:3", Cost: -1},
		{Key: "pair:1", Cost: 4},
	})
	testkit.Must(t, err)
	for i, want := range []error{nil, api.ErrCostExceedsLimit, api.ErrBadKey, api.ErrBadCount, nil} {
		if !errors.Is(list[i].Err, want) || want == nil && list[i].Allowed != (i == 0) {
			t.Errorf("answer %d: %+v, want the error %v", i, list[i], want)
		}
	}
}

// If Redis is away and the rule says deny, the server has decided, and no policy of the client changes the operator's
// choice. With package direct there is no server, so the policy of the client decides.
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

// Envoy's service has no place for values. A check that lost them would be counted without them, or be refused for
// want of what the caller gave.
func TestValuesAreRefusedOverGRPC(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute)
	c := overGRPC(t, w.serveGRPC(t, true))
	req := api.CheckRequest{Key: "user:1", Values: map[string]string{"user": "alice"}}
	_, one := c.Check(t.Context(), req)
	_, all := c.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:1"}, req})
	each, err := c.CheckEach(t.Context(), []api.CheckRequest{req})
	testkit.Must(t, err)
	for _, err := range []error{one, all, each[0].Err} {
		if !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%v, want a bad request", err)
		}
	}
	if s, err := c.Peek(t.Context(), "user:1"); err != nil || s.Windows[0].Used != 0 {
		t.Errorf("%+v, %v, want nothing charged", s, err)
	}
}

// A call of 100 of the longest keys fits the server's bound of a body. Encoders for HTML write 6 bytes for < and &.
func TestTheLargestCallIsTaken(t *testing.T) {
	reqs := make([]api.CheckRequest, 100)
	for i := range reqs {
		reqs[i] = api.CheckRequest{Key: fmt.Sprintf("%0512d", i), Cost: 1_000_000_000, Mode: api.ModeCharge}
		reqs[i].Key = strings.ReplaceAll(reqs[i].Key, "00", "<&")
	}
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, _ way) {
		if all, err := c.CheckAll(t.Context(), reqs); err != nil || len(all.Checks) != len(reqs) {
			t.Errorf("%d answers, %v", len(all.Checks), err)
		}
	}, tenAMinute)
}
