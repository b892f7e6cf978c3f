package windows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// However many keys come, the process holds so many, and counts them.
func TestLocalHoldsABoundedNumberOfKeys(t *testing.T) {
	now := int64(1000)
	local := windows.NewLocal(100, func() int64 { now++; return now })
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "*",
		Windows: []windows.Window{{Limit: 1, Per: 24 * time.Hour}}}})
	testkit.Must(t, err)
	rule := planOf(rules)
	allowed := func(key string) bool {
		v, err := local.Check(t.Context(), []windows.Request{{Plan: rule, Key: key, Cost: 1}})
		testkit.Must(t, err)
		return v.Allowed
	}
	for i := range 10_000 {
		key := fmt.Sprint(i)
		if !allowed(key) || allowed(key) {
			t.Fatalf("key %s: want one unit to be granted, and no second", key)
		}
		if n := local.Len(); n != min(i+1, 100) {
			t.Fatalf("%d keys are held after %d, want at most 100", n, i+1)
		}
	}
	for i := range 1000 {
		local.Add(rule, fmt.Sprint("event ", i), now, 1)
	}
	if n := local.Len(); n != 100 {
		t.Errorf("%d keys are held after events, want 100", n)
	}
}
