package envoy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Who pays afterwards looks first and reports what it was: at 900 of 1,000 tokens a report of
// 500 leaves 1,400, and the next look is denied.
func TestReportsAboveTheLimitCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(`
domain: ai
on_deny: charge
descriptors:
  - key: tokens
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: requests
    on_deny: skip
    rate_limit: {unit: minute, requests_per_unit: 10}
`), 0o600))
	limits, err := config.Load(path)
	testkit.Must(t, err)
	onEveryRedis(t, func(t *testing.T, w *world) {
		c := w.dial(t, envoy.Config{Limits: func() *config.Limits { return limits }})
		ask := func(n uint64, texts ...string) string {
			t.Helper()
			r, err := c.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "ai",
				Descriptors: hits(n, descriptors(texts...))})
			testkit.Must(t, err)
			return told(r)
		}
		for i, step := range []struct {
			hits uint64
			of   []string
			want string
		}{
			{900, []string{"tokens=a"}, "OK; OK 1000/MINUTE left 100"},
			{0, []string{"tokens=a"}, "OK; OK 1000/MINUTE left 100"},
			{500, []string{"tokens=a"}, "OVER_LIMIT; OVER_LIMIT 1000/MINUTE left 0"},
			{0, []string{"tokens=a"}, "OVER_LIMIT; OVER_LIMIT 1000/MINUTE left 0"},
			// Of a request that is denied those count whose limits say so.
			{1, []string{"tokens=a", "tokens=b", "requests=b"}, "OVER_LIMIT; OVER_LIMIT 1000/MINUTE left 0; " +
				"OK 1000/MINUTE left 999; OK 10/MINUTE left 10"},
			{2000, []string{"tokens=c"}, "OVER_LIMIT; OVER_LIMIT 1000/MINUTE left 0"},
			{600, []string{"tokens=d", "tokens=d"}, "OVER_LIMIT; OK 1000/MINUTE left 400; " +
				"OVER_LIMIT 1000/MINUTE left 0"},
		} {
			if got := when.ReplaceAllString(ask(step.hits, step.of...), ""); got != step.want {
				t.Errorf("%d: %d of %v: %s, want %s", i, step.hits, step.of, got, step.want)
			}
		}
		w.advance(time.Second)
		for value, want := range map[string]int64{"a": 1401, "b": 1, "c": 2000, "d": 1200} {
			if n := w.used(t, "ai/tokens="+value); n != want {
				t.Errorf("%s: used %d, want %d", value, n, want)
			}
		}
		if n := w.used(t, "ai/requests=b"); n != 0 {
			t.Errorf("requests: used %d, want 0", n)
		}
	}, limits.Rules()...)
}

// when is how told words when more comes.
var when = regexp.MustCompile(` in [0-9a-z.]+`)
