package counters_test

import (
	"context"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A limit that the caller sends denies exactly. It does not raise or end a level, not
// even one of the rule that otherwise counts the key.
func TestUnlevelledRulesMoveNoLevel(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x := tale{t, s}
		brought := func(limit int64) *windows.Rule {
			return &windows.Rule{
				Name: "override", Match: "*", Algorithm: windows.DefaultAlgorithm, Unlevelled: true,
				Windows: []windows.Window{{Limit: limit, Per: 10 * time.Second}},
			}
		}
		ask := func(limit, cost int64) counters.Verdict {
			v, err := s.Check(context.Background(), []counters.Request{{Plan: windows.PlanOf(brought(limit)), Key: "k",
				Cost: cost}})
			testkit.Must(t, err)
			return v
		}
		if v := ask(3, 3); !v.Allowed || v.Items[0].Windows[0].Used != 3 {
			t.Fatalf("%+v", v)
		}
		if v := ask(3, 1); v.Allowed || v.Items[0].RetryAfter != 10*time.Second {
			t.Fatalf("%+v", v)
		}
		if v := ask(5, 1); !v.Allowed || v.Items[0].Windows[0].Used != 4 {
			t.Fatalf("another limit, the same count: %+v", v)
		}
		x.expect()
		if due := x.due("k"); due != -1 {
			t.Fatalf("due in %d ms", due)
		}
		x.check("k", 6)
		x.expect("raised api/k 80% used 10", "raised api/k 95% used 10", "raised api/k 100% used 10",
			"throttled api/k 100% used 10")
		ask(12, 1)
		x.expect()
		if given, _, err := s.serve.Refund(context.Background(), windows.PlanOf(brought(12)), "k", 4); err != nil ||
			given != 4 {
			t.Fatalf("%d given back, %v", given, err)
		}
	})
}
