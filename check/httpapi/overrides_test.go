package httpapi_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// sharing returns another server over the same keys and clock.
func sharing(t *testing.T, w *world, rules ...*windows.Rule) *world {
	t.Helper()
	other := &world{redis: w.redis, keys: w.keys, registry: w.registry}
	counter := counters.New(w.redis, w.keys)
	counter.Now = w.clock.Load
	loaded, err := windows.NewRules(rules)
	testkit.Must(t, err)
	other.overrides = counter.NewOverrides(nil)
	testkit.Must(t, other.overrides.Poll(t.Context()))
	other.service, err = check.NewService(check.Config{Counter: counter, Timeout: patience,
		Rules: windows.Under(other.overrides, windows.Fixed(loaded).Rules)})
	testkit.Must(t, err)
	other.server, err = httpapi.NewServer(httpapi.Config{Checks: other.service, Log: w.log, Metrics: w.metrics,
		AppendTimeout: patience})
	testkit.Must(t, err)
	other.handler = httpapi.NewRouter(nil, other.server.Routes(nil)...)
	return other
}

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
