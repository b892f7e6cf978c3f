package client_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	err = ask(t.Context(), c, "each", api.CheckRequest{Key: "user:1"}, api.CheckRequest{Key: "user:2", Cost: 11})
	if !errors.Is(err, api.ErrCostExceedsLimit) {
		t.Errorf("a cost above the limit: %v", err)
	}
}

// Envoy's service has no place for values. A check that lost them would be counted without them, or be refused for
// want of what the caller gave.
func TestValuesAreRefusedOverGRPC(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute)
	c := overGRPC(t, w.serveGRPC(t, true))
	req := api.CheckRequest{Key: "user:1", Values: map[string]string{"user": "alice"}}
	for kind, reqs := range map[string][]api.CheckRequest{"check": {req}, "all": {{Key: "user:1"}, req},
		"each": {req}} {
		if err := ask(t.Context(), c, kind, reqs...); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%s: %v, want a bad request", kind, err)
		}
	}
	if s, err := c.Peek(t.Context(), "user:1"); err != nil || s.Windows[0].Used != 0 {
		t.Errorf("%+v, %v, want nothing charged", s, err)
	}
}

// A call of 100 of the longest keys, of one partition, fits the server's bound of a body and one script call. Encoders
// for HTML write 6 bytes for < and &.
func TestTheLargestCallIsTaken(t *testing.T) {
	reqs := make([]api.CheckRequest, 100)
	for i := range reqs {
		key := "{<&}" + strings.ReplaceAll(fmt.Sprintf("%0508d", i), "00", "<&")
		reqs[i] = api.CheckRequest{Key: key, Cost: 1_000_000_000, Mode: api.ModeCharge}
	}
	every := rule("all", func(r *windows.Rule) { r.Match = "*" }, windows.Window{Limit: 1e9, Per: time.Minute})
	c := overHTTP(t, newWorld(t, streamtest.AnyRedis(t), patience, every).serveHTTP(t))
	if all, err := c.CheckAll(t.Context(), reqs); err != nil || len(all.Checks) != len(reqs) || !all.Atomic ||
		!all.Allowed {
		t.Errorf("%d answers, atomic %t, allowed %t, %v", len(all.Checks), all.Atomic, all.Allowed, err)
	}
}

// HTTP, gRPC and package direct return the same answer for the same request in the same state, and the same error.
func TestEveryTransportGivesTheSameAnswer(t *testing.T) {
	rules := []*windows.Rule{
		rule("one", nil, windows.Window{Limit: 10, Per: time.Minute}), twoWindows, watched,
		rule("job", nil, windows.Window{Limit: 4, Per: time.Minute, InFlight: true}),
	}
	keys := []string{"one:1", "one:2", "pair:1", "pair:2", "shadow:1", "nobody:1", "job:1", "one:\n", "",
		strings.Repeat("k", 513)}
	modes := []api.Mode{"", "", "", "", api.ModeTake, api.ModeLook, api.ModeCharge, "no"}
	badKeys := []string{"a\nb", "a\x7fb", "ü", "a b", `a"b`, strings.Repeat("k", 101)}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	redis := streamtest.AnyRedis(t)
	var worlds []*world
	var ways []client.Checker
	var names []string
	for _, way := range transports {
		w := newWorld(t, redis, patience, rules...)
		worlds, ways, names = append(worlds, w), append(ways, way.open(t, w)), append(names, way.name)
	}
	w := newWorld(t, redis, patience, rules...) // a Client changes no answer of its transport
	worlds, names = append(worlds, w), append(names, "client")
	ways = append(ways, newClient(t, overHTTP(t, w.serveHTTP(t)), client.Config{Timeout: patience}))
	words := func(v any, err error) string {
		if err != nil {
			return fmt.Sprint("error ", api.NameOf(err), " no answer: ", errors.Is(err, api.ErrNoAnswer))
		}
		text, err := json.Marshal(v)
		testkit.Must(t, err)
		return string(text)
	}
	for step := range 400 {
		reqs := make([]api.CheckRequest, 1+r.IntN(4))
		for i := range reqs {
			reqs[i] = api.CheckRequest{Key: keys[r.IntN(len(keys))], Cost: int64(r.IntN(8) - 1),
				Mode: modes[r.IntN(len(modes))]}
		}
		if r.IntN(30) == 0 {
			reqs[0].Checks = []api.CheckRequest{}
		}
		ctx := t.Context()
		if r.IntN(15) == 0 {
			ctx = api.WithIdempotency(ctx, api.Idempotency{Key: badKeys[r.IntN(len(badKeys))]})
		}
		kind, wait := r.IntN(11), time.Duration(r.IntN(4000))*time.Millisecond
		var told []string
		for i, c := range ways {
			var text string
			switch {
			case kind < 4:
				text = words(c.Check(ctx, reqs[0]))
			case kind < 7:
				text = words(c.CheckAll(ctx, reqs))
			case kind < 9: // of different keys: gRPC asks for each in a call of its own, in no order
				list, err := c.CheckEach(ctx, slices.CompactFunc(slices.SortedStableFunc(slices.Values(reqs),
					func(a, b api.CheckRequest) int { return cmp.Compare(a.Key, b.Key) }),
					func(a, b api.CheckRequest) bool { return a.Key == b.Key }))
				if err != nil {
					text = words(nil, err)
				}
				for _, e := range list {
					text += words(e.CheckAnswer, e.Err) + "\n"
				}
			case kind == 9:
				text = words(c.CheckAll(ctx, nil)) + words(c.CheckEach(ctx, nil))
			default:
				text = words(c.Peek(ctx, reqs[0].Key))
			}
			told = append(told, text)
			worlds[i].clock.Add(wait.Milliseconds())
		}
		refused := strings.Contains(told[0], api.NameOf(api.ErrBadIdempotencyKey))
		for i := range told {
			if told[i] != told[0] || refused != (api.Repeatable(ctx) && kind < 9) {
				t.Fatalf("seed %d, step %d, kind %d, %s:\n%s: %s\n%s: %s", seed, step, kind, fmt.Sprint(reqs),
					names[0], told[0], names[i], told[i])
			}
		}
	}
}
