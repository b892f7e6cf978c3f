package consumers

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Rules are changed and changed back before the walk over all keys begins. Meanwhile the keys were released, so they
// have no level, and the worker finds them by their counters. There are more of them than one step takes. Subscribers
// receive at once what checks answer. (The story rules_change.txt of internal/counters has each kind of change.)
func TestReloadsReachSubscribers(t *testing.T) {
	limited := func(limit int64) *windows.Rules {
		rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
			Windows: []windows.Window{{Limit: limit, Per: time.Hour}}}})
		testkit.Must(t, err)
		return rules
	}
	t.Parallel()
	w, r, gate := newWorld(t), &recorder{}, make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	w.setRules(limited(10))
	pool, _ := w.run(r, func(c *Config) { c.onRescan = func() { <-gate } })
	t.Cleanup(open)
	const keys = 120 // all in one partition
	var events []api.Event
	for i := range keys {
		events = append(events, api.Event{Key: fmt.Sprintf("user:%d{x}", i), Count: 10})
	}
	told := func(want string) {
		t.Helper()
		for i := range keys {
			w.told(r, fmt.Sprintf("user:%d{x}", i), want)
		}
	}
	w.append(events...)
	told("raised 100, throttled 100")
	w.setRules(limited(20))
	pool.Recheck()
	told("raised 100, throttled 100, released 100, cleared 100")
	w.setRules(limited(10))
	pool.Recheck()
	open()
	told("raised 100, throttled 100, released 100, cleared 100, raised 100, throttled 100")
}
