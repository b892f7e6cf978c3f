package consumers_test

import (
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Rules are changed and changed back before the walk over all keys begins. Meanwhile the key was released, so it has no
// level, and the worker finds it by its counter. Subscribers receive at once what checks answer. (The story
// rules_change.txt of internal/counters has each kind of change.)
func TestReloadsReachSubscribers(t *testing.T) {
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
		w.append(api.Event{Key: "user:1", Count: 10})
		w.told(r, "user:1", "raised 100, throttled 100")
		w.setRules(limited(20))
		pool.Recheck()
		w.told(r, "user:1", "raised 100, throttled 100, released 100, cleared 100")
		w.setRules(limited(10))
		pool.Recheck()
		open()
		w.told(r, "user:1", "raised 100, throttled 100, released 100, cleared 100, raised 100, throttled 100")
	})
}
