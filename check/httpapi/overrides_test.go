package httpapi_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func put(t *testing.T, w *world, target, body string) answer {
	t.Helper()
	return w.do(t, "PUT", "/v1/overrides/"+url.PathEscape(target), body)
}

// outbox returns what waits to be published: state rule key reason.
func (w *world) outbox(t *testing.T, key string) []string {
	t.Helper()
	entries, err := w.redis.XRange(t.Context(), w.keys.Outbox(w.keys.Partition(key)), "-", "+").Result()
	testkit.Must(t, err)
	var out []string
	for _, e := range entries {
		if e.Values["key"] == key && (e.Values["state"] == "throttled" || e.Values["state"] == "released") {
			line := e.Values["state"].(string) + " " + e.Values["rule"].(string)
			if reason, _ := e.Values["reason"].(string); reason != "" {
				line += " " + reason
			}
			if strings.Contains(e.Values["flags"].(string), "r") {
				line += " renewed"
			}
			out = append(out, line)
		}
	}
	return out
}

// A key that the pattern of a block fits has its decision when it is first asked for.
func TestABlockedPatternIsAnnouncedAtTheFirstCheck(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	wantStatus(t, put(t, w, "user:a*", `{"block":true,"for":"1h","reason":"abuse"}`), 200)
	for range 3 {
		wantStatus(t, w.get(t, "user:a1"), 429)
	}
	streamtest.Eventually(t, "the decision is written", func() (bool, string) {
		got := w.outbox(t, "user:a1")
		return slices.Equal(got, []string{"throttled override abuse"}), fmt.Sprint(got)
	})
}
