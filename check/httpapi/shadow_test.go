package httpapi_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// The page has the decisions that shadow rules would have made, also for keys that no other rule matches. An exempt key
// is admitted by its rule.
func TestTheActivityOfShadowRules(t *testing.T) {
	shadow := func(r *windows.Rule) { r.Shadow = true }
	w := newWorld(t, streamtest.AnyRedis(t), rule("probe", shadow, windows.Window{Limit: 1, Per: time.Minute}),
		rule("user", nil, windows.Window{Limit: 1, Per: time.Minute}))
	wantStatus(t, put(t, w, "user:2", `{"exempt":true}`), 200)
	for range 3 {
		wantStatus(t, w.get(t, "probe:1"), 200)
		wantStatus(t, w.get(t, "user:2"), 200)
	}
	testkit.Must(t, w.activity.Publish(t.Context()))
	testkit.Must(t, w.redis.HSet(t.Context(), w.keys.Processes(), "serve test", "announced").Err())
	got, err := activity.Gather(t.Context(), w.redis, w.keys)
	testkit.Must(t, err)
	counts := got.Processes[0].Counts
	if p, u := counts["probe"], counts["user"]; p.Allowed != 1 || p.Denied != 2 || u.Allowed != 3 || u.Denied != 0 {
		t.Errorf("the shadow rule %+v, the rule of the exempt key %+v", p, u)
	}
}
