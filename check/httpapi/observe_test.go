package httpapi_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The busiest keys are those that checks ask most for, admitted or not. Looks, answers that are
// repeated, and requests that are refused do not count.
func TestTop(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	for _, key := range []string{"user:1", "user:1"} { // the second is denied
		w.do(t, "GET", "/v1/check?cost=6&key="+key, "")
	}
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/check", `{"key":"user:2","cost":6}`, 200},
		{"/v1/check", `{"key":"user:2","cost":6}`, 200},
		{"/v1/check", `{"key":"user:2","cost":7}`, 422},
		{"/v1/check", `{"each":true,"checks":[{"key":"user:2","cost":6}]}`, 200},
		{"/v1/check", `{"each":true,"checks":[{"key":"user:2","cost":7}]}`, 200}, // in it is a 422
		{"/v1/reservations", `{"key":"user:4","cost":3}`, 201},
		{"/v1/reservations", `{"key":"user:4","cost":3}`, 201},
		{"/v1/reservations", `{"key":"user:4","cost":4}`, 422},
	} {
		if a := w.do(t, "POST", c.path, c.body, "Idempotency-Key: a"); a.status != c.status {
			t.Errorf("%s %s: %d %s", c.path, c.body, a.status, a.text)
		}
	}
	w.do(t, "GET", "/v1/check?mode=look&key=user:3", "")
	testkit.Must(t, w.activity.Publish(t.Context()))
	for path, want := range map[string]string{
		"/v1/top": `"keys":[{"key":"user:1","units":12,"at_most":12},` +
			`{"key":"user:2","units":6,"at_most":6},{"key":"user:4","units":3,"at_most":3}]`,
		"/v1/top?rule=user":             `"units":21,"unlisted_at_most":0,"keys"`,
		"/v1/top?rule=user&limit=1":     `"unlisted_at_most":6,"keys":[{"key":"user:1","units":12,"at_most":12}]}`,
		"/v1/top?rule=none":             `rule=\"none\", expected the name of a rule`,
		"/v1/top?rule=user&rule=shadow": "is given 2 times",
	} {
		if got := w.do(t, "GET", path, ""); !strings.Contains(got.text, want) {
			t.Errorf("%s: %s, want %s", path, got.text, want)
		}
	}
}
