package counters_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// However many calls with however many keys come at the same time, one script call has a bounded number of
// keys, and each call is answered once.
func TestScriptCallsAreBounded(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		var most atomic.Int64 // keys that a script had
		s.redis.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if keys, ok := cmd.Args()[min(2, len(cmd.Args())-1)].(int); ok && streamtest.IsScript(cmd) {
				most.Store(max(most.Load(), int64(keys)))
			}
			return next(ctx, cmd)
		}))
		counter := counters.New(s.redis, s.keys)
		rules := rulesOf(t, &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 1000,
			Per: time.Hour}}})
		testkit.Must(t, counter.RecordRules(t.Context(), rules))
		var calls [][]counters.Request
		for i := range 60 {
			var call []counters.Request
			for k := range 100 {
				call = append(call, counters.Request{Plan: planOf(rules), Key: fmt.Sprint(i, "-", k), Cost: 1})
			}
			// All calls have one key in common. Its count shows how often each call was charged.
			calls = append(calls, append(call, counters.Request{Plan: planOf(rules), Key: "all", Cost: 1}))
		}
		verdicts, err := counter.CheckMany(t.Context(), calls)
		testkit.Must(t, err)
		seen := map[int64]bool{}
		for i, v := range verdicts {
			if len(v.Items) != 101 {
				t.Fatalf("call %d has %d answers, want 101", i, len(v.Items))
			}
			used := v.Items[100].Windows[0].Used
			if !v.Allowed || v.Items[0].Windows[0].Used != 1 || seen[used] || used < 1 || used > 60 {
				t.Errorf("call %d: %t, own key %+v, the common one %+v", i, v.Allowed, v.Items[0], v.Items[100])
			}
			seen[used] = true
		}
		if most := most.Load(); most > 1024+100 || most < 1024 {
			t.Errorf("a script call had %d keys, at most 1124 are expected", most)
		}
	})
}
