package envoy_test

import (
	"fmt"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A limit of 0 denies the whole request, and nothing is taken from the others;
// what they are told is where they stand.
func TestALimitOfZeroBesideOthersTakesNothing(t *testing.T) {
	limits, err := config.Load("testdata/zero.yml")
	testkit.Must(t, err)
	onEveryRedis(t, func(t *testing.T, w *world) {
		client := w.dial(t, envoy.Config{Limits: func() *config.Limits { return limits }})
		ask := func(texts ...string) string {
			got, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "edge",
				Descriptors: descriptors(texts...)})
			testkit.Must(t, err)
			return told(got)
		}
		const denied = "OVER_LIMIT; OVER_LIMIT 0/MINUTE left 0 in 1m0s"
		for i := range 3 {
			if got, want := ask("blocked=yes", "path=a"), denied+"; OK 10/MINUTE left 10 in 0s"; got != want {
				t.Errorf("denial %d:\n told %s\n want %s", i, got, want)
			}
		}
		for i := range 10 {
			if got, want := ask("path=a"), fmt.Sprintf("OK; OK 10/MINUTE left %d in 1m0s", 9-i); got != want {
				t.Errorf("request %d:\n told %s\n want %s", i, got, want)
			}
		}
		if got, want := ask("path=a", "blocked=yes"),
			"OVER_LIMIT; OVER_LIMIT 10/MINUTE left 0 in 1m0s; OVER_LIMIT 0/MINUTE left 0 in 1m0s"; got != want {
			t.Errorf("beside a full one:\n told %s\n want %s", got, want)
		}
		// Nothing is given back by a request that is denied.
		_, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "edge",
			Descriptors: append(descriptors("blocked=yes"), back(5, descriptors("path=a"))...)})
		testkit.Must(t, err)
		if got, want := ask("path=a"), "OVER_LIMIT; OVER_LIMIT 10/MINUTE left 0 in 1m0s"; got != want {
			t.Errorf("after a denied refund:\n told %s\n want %s", got, want)
		}
	}, &windows.Rule{Name: "none", Match: "nothing", Windows: []windows.Window{{Limit: 1, Per: 1000_000_000}}})
}
