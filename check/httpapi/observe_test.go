package httpapi_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The busiest keys are those that checks ask most for, admitted or not; looks do not count.
func TestTop(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	for _, key := range []string{"user:1", "user:1", "user:2"} {
		w.do(t, "GET", "/v1/check?cost=6&key="+key, "")
	}
	w.do(t, "GET", "/v1/check?mode=look&key=user:3", "")
	testkit.Must(t, w.activity.Publish(t.Context()))
	for path, want := range map[string]string{
		"/v1/top": `"keys":[{"key":"user:1","units":12,"at_most":12},` +
			`{"key":"user:2","units":6,"at_most":6}]`,
		"/v1/top?rule=user":             `"units":18,"unlisted_at_most":0,"keys"`,
		"/v1/top?rule=user&limit=1":     `"unlisted_at_most":6,"keys":[{"key":"user:1","units":12,"at_most":12}]}`,
		"/v1/top?rule=none":             `rule=\"none\", expected the name of a rule`,
		"/v1/top?rule=user&rule=shadow": "is given 2 times",
	} {
		if got := w.do(t, "GET", path, ""); !strings.Contains(got.text, want) {
			t.Errorf("%s: %s, want %s", path, got.text, want)
		}
	}
}
