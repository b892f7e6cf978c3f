package httpapi_test

import (
	"fmt"
	"strings"
	"testing"
)

// Checks with "each" are decided by themselves, one after the other, and what is
// wrong with one stands in its place alone.
func TestEach(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.post(t, `{"each":true,"checks":[{"key":"user:1","cost":9},{"key":"user:2"},{"key":"user:1","cost":2},
			{"key":"nobody"},
			{"key":"user:3","cost":11},{"key":"user:\n"},{"key":"user:1","cost":0},{"key":"user:1"}]}`)
		wantStatus(t, a, 200)
		list, _ := a.body["checks"].([]any)
		var got []string
		for _, one := range list {
			m := one.(map[string]any)
			if problem, ok := m["error"].(map[string]any); ok {
				got = append(got, fmt.Sprint(m["key"], " ", strings.TrimPrefix(problem["type"].(string),
					"urn:streamcounter:"), " ", problem["status"]))
				continue
			}
			text := fmt.Sprint(m["key"], " ", m["allowed"])
			if ws := m["windows"].([]any); len(ws) == 1 {
				text += fmt.Sprint(" ", ws[0].(map[string]any)["used"])
			}
			got = append(got, text)
		}
		want := []string{"user:1 true 9", "user:2 true 1", "user:1 false 9", "nobody true",
			"user:3 cost-exceeds-limit 400", "user:\n bad-key 400", "user:1 bad-count 400", "user:1 true 10"}
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("answers\n %q\nwant\n %q", got, want)
		}
		for _, bad := range []string{`{"each":true}`, `{"each":true,"checks":[]}`, `{"each":true,"key":"a"}`,
			`{"each":true,"key":"a","checks":[{"key":"b"}]}`} {
			wantProblem(t, w.post(t, bad), 400, "bad-request", `"each" needs`)
		}
		a = w.post(t, `{"each":true,"checks":[{"checks":[{"key":"user:1"}]}]}`)
		wantStatus(t, a, 200)
		if !strings.Contains(a.text, "of its own") {
			t.Errorf("checks within a check: %s", a.text)
		}
	}, tenAMinute)
}
