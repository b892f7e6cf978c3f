package consumers_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Each rule change, and its reversal: subscribers receive at once what checks answer. The key has no level when the
// rules are changed back, so the worker finds it by its counter. (The story rules_change.txt of internal/counters
// covers each kind of change.)
func TestReloadsReachSubscribers(t *testing.T) {
	rule := func(change func(*windows.Rule)) *windows.Rule {
		r := &windows.Rule{Name: "api", Match: "user:*", Windows: []windows.Window{{Limit: 10, Per: time.Hour}},
			Hold: time.Minute}
		change(r)
		return r
	}
	same := func(*windows.Rule) {}
	for _, c := range []struct {
		name        string
		change      func(*windows.Rule)
		there, back string
	}{
		{"limit", func(r *windows.Rule) { r.Windows = []windows.Window{{Limit: 20, Per: time.Hour}} },
			"released 100, cleared 100", "raised 100, throttled 100"},
		{"shadow", func(r *windows.Rule) { r.Shadow = true }, "throttled 100", "throttled 100"},
		{"no rule", func(r *windows.Rule) { r.Match = "other:*" }, "released 100, cleared 100",
			"raised 100, throttled 100"},
		{"alerts", func(r *windows.Rule) { r.Alerts = []int{70} }, "raised 70", "cleared 70"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, url string) {
				w, r := newWorld(t, url, rule(same)), &recorder{}
				pool := w.startPool(r)
				w.append(api.Event{Key: "user:1", Count: 10})
				want := "raised 100, throttled 100"
				reaches := func(more string) {
					t.Helper()
					if want += ", " + more; more == "" {
						want = "raised 100, throttled 100"
					}
					w.eventually(fmt.Sprintf("subscribers receive %q", want),
						func() (bool, string) { return r.of("user:1") == want, r.of("user:1") })
				}
				reaches("")
				for _, step := range []struct {
					change func(*windows.Rule)
					more   string
				}{{c.change, c.there}, {same, c.back}} {
					rules, err := windows.NewRules([]*windows.Rule{rule(step.change)})
					testkit.Must(t, err)
					w.setRules(rules)
					pool.Recheck()
					reaches(step.more)
				}
			})
		})
	}
}

// Rules are changed and changed back before the walk over all keys begins. Meanwhile the key was released.
func TestRulesThatAreChangedBackReachSubscribers(t *testing.T) {
	limited := func(limit int64) *windows.Rules {
		rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
			Windows: []windows.Window{{Limit: limit, Per: time.Hour}}}})
		testkit.Must(t, err)
		return rules
	}
	each(t, func(t *testing.T, url string) {
		w, r, gate := newWorld(t, url), &recorder{}, make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		w.setRules(limited(10))
		pool, _ := w.run(r, func(c *consumers.Config) { c.OnRescan(func() { <-gate }) })
		t.Cleanup(open)
		reaches := func(want string) {
			t.Helper()
			w.eventually(fmt.Sprintf("subscribers receive %q", want),
				func() (bool, string) { return r.of("user:1") == want, r.of("user:1") })
		}
		w.append(api.Event{Key: "user:1", Count: 10})
		reaches("raised 100, throttled 100")
		w.setRules(limited(20))
		pool.Recheck()
		reaches("raised 100, throttled 100, released 100, cleared 100")
		w.setRules(limited(10))
		pool.Recheck()
		open()
		reaches("raised 100, throttled 100, released 100, cleared 100, raised 100, throttled 100")
	})
}
