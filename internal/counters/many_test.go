package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// ask sends calls in one run, or one by one if there are no runs (in process).
func (l *timeline) ask(calls [][]counters.Request) (got []counters.Verdict) {
	if l.s.serve != nil {
		got, err := l.s.serve.CheckMany(context.Background(), calls)
		testkit.Must(l, err)
		return got
	}
	for _, asks := range calls {
		v, err := l.s.Check(context.Background(), asks)
		testkit.Must(l, err)
		got = append(got, v)
	}
	return got
}

// If somebody else has written a key of another type, the calls with this key are refused. The other calls of the run
// are answered, and stay answered.
func TestARefusalLeavesTheOtherCallsOfARun(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{80},
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		plan, ctx := planOf(s.rules), t.Context()
		calls := [][]counters.Request{}
		for i := range 20 {
			calls = append(calls, []counters.Request{{Plan: plan, Key: fmt.Sprint("k", i), Cost: 1}})
		}
		calls[3][0].Cost = 9
		p := s.keys.Partition(calls[3][0].Key)
		testkit.Must(t, s.redis.Set(ctx, s.keys.Levels(p), "a stranger's", 0).Err())
		got, err := s.serve.CheckMany(ctx, calls)
		if !redisclient.IsRefusal(err) {
			t.Errorf("error %v, want a refusal", err)
		}
		for i, v := range got {
			st, err := s.serve.Peek(ctx, plan, calls[i][0].Key)
			testkit.Must(t, err)
			if answered := i != 3; v.Answered() != answered || st.Windows[0].Used > 0 != answered {
				t.Errorf("call %d: answered %t, %d used", i, v.Answered(), st.Windows[0].Used)
			}
		}
	})
}

// A run writes one entry for all that it charges to one key, however many calls it
// answers, and one transition per level.
func TestManyChecksOfOneKey(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 100, Per: time.Minute}},
		Alerts: []int{80}, Hold: time.Second}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		r := planOf(s.rules)
		calls := make([][]counters.Request, 150)
		for i := range calls {
			calls[i] = []counters.Request{{Plan: r, Key: "user:1", Cost: 1}}
		}
		got, err := s.serve.CheckMany(t.Context(), calls)
		testkit.Must(t, err)
		for i, v := range got {
			if v.Allowed != (i < 100) || v.Items[0].Windows[0].Used != min(int64(i)+1, 100) {
				t.Fatalf("call %d: %+v", i, v)
			}
		}
		p := s.keys.Partition("user:1")
		if n := s.redis.XLen(t.Context(), s.keys.Counter(p, "log", "user:1")).Val(); n != 1 {
			t.Errorf("%d entries, want one", n)
		}
		// 80, 100, throttled
		if n := s.redis.XLen(t.Context(), s.keys.Outbox(p)).Val(); n != 3 || got[0].Transitions != 3 {
			t.Errorf("%d transitions in the outbox, %d told, want 3", n, got[0].Transitions)
		}
	})
}
