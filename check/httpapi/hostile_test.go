package httpapi_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// A body of bad lines names the first thousand, and one of too many is not read to its end.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	lines := func(n int) string { return strings.Repeat("-\n", n) }
	a := w.do(t, "POST", "/v1/events", lines(1500)+`{"key":"user:1"}`)
	if list, _ := a.body["rejected"].([]any); a.status != 202 || len(list) != 1000 || a.num("rejected_more") != 500 ||
		a.num("accepted") != 1 {
		t.Errorf("%d: %d named, %d more, %d accepted, want 1000, 500 and 1", a.status, len(list),
			a.num("rejected_more"), a.num("accepted"))
	}
	if a := w.do(t, "POST", "/v1/events", lines(100_000)); a.status != 202 || a.num("rejected_more") != 99_000 {
		t.Errorf("100,000 bad lines: %d, %d more", a.status, a.num("rejected_more"))
	}
	for name, body := range map[string]string{
		"lines": lines(100_001), "elements": "[" + strings.Repeat("7,", 100_000) + "7]",
		"elements with commas of their own": `[{"key":"a,]\",["},` + strings.Repeat("[1,2],", 100_000) + "7]",
	} {
		before := len(w.appended(t))
		t.Run(name, func(t *testing.T) {
			wantProblem(t, w.do(t, "POST", "/v1/events", body), 413, "body-too-large", "100000 events")
			if n := len(w.appended(t)); n != before {
				t.Errorf("%d events of a body that was refused", n-before)
			}
		})
	}
}

// The largest request that may come is answered.
func TestLargestCheck(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), rule("user", func(r *windows.Rule) { r.Match = "*" },
		tenAMinute.Windows...))
	var checks []string
	for i := range 100 {
		checks = append(checks, fmt.Sprintf(`{"key":"{user:}%s%d"}`, strings.Repeat("k", 500), i))
	}
	a := w.post(t, `{"checks":[`+strings.Join(checks, ",")+`]}`)
	wantStatus(t, a, 200)
	if list, _ := a.body["checks"].([]any); len(list) != 100 || a.body["atomic"] != true {
		t.Errorf("%d answers, atomic %v", len(list), a.body["atomic"])
	}
}

// Keys that look like paths reach the handler: nothing on the way tidies them up, and nothing is redirected.
func TestKeysThatLookLikePaths(t *testing.T) {
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	w := newWorld(t, streamtest.AnyRedis(t), anyKey)
	for _, key := range []string{"..", "../..", "//", "/", ".", "a//b", "a/../b", "../../healthz"} {
		for _, path := range []string{"/v1/keys/" + key, "/v1/keys/" + url.PathEscape(key)} {
			if a := w.do(t, "GET", path, ""); a.status != 200 || a.str("key") != key {
				t.Errorf("GET %s: %d %s", path, a.status, a.text)
			}
		}
	}
	for _, path := range []string{"//v1/check?key=a", "/v1//check?key=a", "/./healthz", "/v1/check/?key=a",
		"/V1/check?key=a"} {
		if a := w.do(t, "GET", path, ""); a.status != 404 || a.str("type") != "urn:streamcounter:not-found" {
			t.Errorf("GET %s: %d %s, want a 404 of ours", path, a.status, a.text)
		}
	}
}
