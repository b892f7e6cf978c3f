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
