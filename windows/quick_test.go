package windows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// quickRule has levels at 8 and 10 units.
func quickRule() *windows.Rule {
	return &windows.Rule{Name: "api", Match: "*", Alerts: []int{80},
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}, {Limit: 100, Per: time.Hour}}}
}

// The common check is answered by the quick script: every one below the levels, in runs of
// one and of many. Others are left to the general one, and then at once.
func TestTheCommonCheckIsQuick(t *testing.T) {
	eachRedis(t, rulesOf(t, quickRule()), func(t *testing.T, s *store) {
		plan := planOf(s.rules)
		quick := int64(0)
		ask := func(more int64, calls ...[]windows.Request) []windows.Verdict {
			t.Helper()
			got, err := s.serve.CheckMany(t.Context(), calls)
			testkit.Must(t, err)
			if n := s.serve.AnsweredQuick() - quick; n != more {
				t.Errorf("%d calls answered quickly, want %d", n, more)
			}
			quick = s.serve.AnsweredQuick()
			return got
		}
		one := func(key string, cost int64) []windows.Request {
			return []windows.Request{{Plan: plan, Key: key, Cost: cost}}
		}
		for i := range 7 {
			v := ask(1, one("a", 1))[0]
			if !v.Allowed || !v.Atomic || v.Items[0].Windows[0].Used != int64(i+1) {
				t.Errorf("check %d: %+v", i, v)
			}
		}
		ask(0, one("a", 1)) // reaches 80 %
		ask(0, one("a", 1)) // and is known to be there
		got := ask(4, one("b", 3), one("a", 1), one("c", 1), one("b", 2), one("d", 2))
		for i, want := range []int64{3, 10, 1, 5, 2} {
			if used := got[i].Items[0].Windows[0].Used; !got[i].Allowed || used != want {
				t.Errorf("call %d: %d used, want %d", i, used, want)
			}
		}
		ask(0, one("b", 2), one("b", 0))                         // a look goes the way of the check before it
		ask(1, one("c", 1), append(one("b", 1), one("d", 1)...)) // a call of two keys
		s.clock.ms += 61_000
		ask(0, one("a", 1)) // finds that it is near no more
		ask(1, one("a", 1))
	})
}

// Where the general script is refused, the calls that were answered stay answered: whoever
// asked them again would charge twice.
func TestARefusalLeavesWhatWasAnswered(t *testing.T) {
	eachRedis(t, rulesOf(t, quickRule()), func(t *testing.T, s *store) {
		plan, ctx := planOf(s.rules), t.Context()
		calls := [][]windows.Request{}
		for i := range 20 {
			calls = append(calls, []windows.Request{{Plan: plan, Key: fmt.Sprint("k", i), Cost: 1}})
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
