package envoy_test

import (
	"encoding/json"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// moved serves limits as users who move from envoyproxy/ratelimit have them.
func moved(t *testing.T, text string, c envoy.Config, options ...config.Options) (
	ask func(*rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse) {
	t.Helper()
	source, err := config.NewSource(config.SourceConfig{Limits: testkit.WriteFile(t, "limits.yaml", text),
		Options: append(options, config.Options{})[0]})
	testkit.Must(t, err)
	w := newWorld(t, streamtest.AnyRedis(t), source.Rules().List()...)
	c.Limits = source.Limits
	client := w.dial(t, c)
	return func(r *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
		t.Helper()
		resp, err := client.ShouldRateLimit(t.Context(), r)
		testkit.Must(t, err)
		return resp
	}
}

func asking(texts ...string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: descriptors(texts...)}
}

// Hits by limit, as the statistics of envoyproxy/ratelimit count them: 8 of 10 is near.
func TestMetricsOfMovers(t *testing.T) {
	reg := prometheus.NewRegistry()
	ask := moved(t, `
domain: edge
descriptors:
  - {key: client, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: each, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}
`, envoy.Config{Metrics: envoy.NewMetrics(reg, 0.8)})
	for range 3 {
		r := asking("client=a", "quiet=x", "each=b")
		r.HitsAddend = 3 // 3, 6, 9: one of the last three is near
		ask(r)
	}
	r := asking("client=a", "each=c") // each=c is within its limit, though the request is denied
	r.HitsAddend = 2
	if resp := ask(r); resp.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Fatal(resp)
	}
	want := `
# HELP ratelimit_service_rate_limit_near_limit Hits by limit: domain and the descriptors that lead to it.
# TYPE ratelimit_service_rate_limit_near_limit counter
ratelimit_service_rate_limit_near_limit{domain="edge",key1="client"} 1
ratelimit_service_rate_limit_near_limit{domain="edge",key1="each_b"} 1
ratelimit_service_rate_limit_near_limit{domain="edge",key1="each_c"} 0
ratelimit_service_rate_limit_near_limit{domain="edge",key1="quiet"} 0
# HELP ratelimit_service_rate_limit_over_limit Hits by limit: domain and the descriptors that lead to it.
# TYPE ratelimit_service_rate_limit_over_limit counter
ratelimit_service_rate_limit_over_limit{domain="edge",key1="client"} 2
ratelimit_service_rate_limit_over_limit{domain="edge",key1="each_b"} 0
ratelimit_service_rate_limit_over_limit{domain="edge",key1="each_c"} 0
ratelimit_service_rate_limit_over_limit{domain="edge",key1="quiet"} 9
# HELP ratelimit_service_rate_limit_shadow_mode Hits by limit: domain and the descriptors that lead to it.
# TYPE ratelimit_service_rate_limit_shadow_mode counter
ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="client"} 0
ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="each_b"} 0
ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="each_c"} 0
ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="quiet"} 9
# HELP ratelimit_service_rate_limit_total_hits Hits by limit: domain and the descriptors that lead to it.
# TYPE ratelimit_service_rate_limit_total_hits counter
ratelimit_service_rate_limit_total_hits{domain="edge",key1="client"} 11
ratelimit_service_rate_limit_total_hits{domain="edge",key1="each_b"} 9
ratelimit_service_rate_limit_total_hits{domain="edge",key1="each_c"} 2
ratelimit_service_rate_limit_total_hits{domain="edge",key1="quiet"} 9
# HELP ratelimit_service_rate_limit_within_limit Hits by limit: domain and the descriptors that lead to it.
# TYPE ratelimit_service_rate_limit_within_limit counter
ratelimit_service_rate_limit_within_limit{domain="edge",key1="client"} 9
ratelimit_service_rate_limit_within_limit{domain="edge",key1="each_b"} 9
ratelimit_service_rate_limit_within_limit{domain="edge",key1="each_c"} 2
ratelimit_service_rate_limit_within_limit{domain="edge",key1="quiet"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "ratelimit_service_rate_limit_near_limit",
		"ratelimit_service_rate_limit_over_limit", "ratelimit_service_rate_limit_shadow_mode",
		"ratelimit_service_rate_limit_total_hits", "ratelimit_service_rate_limit_within_limit"); err != nil {
		t.Error(err)
	}
}

// The dynamic metadata of the newest envoyproxy/ratelimit: what was asked, what the limits that
// admit carry, which backends have some quota left.
func TestDynamicMetadata(t *testing.T) {
	const limits = `
domain: edge
descriptors:
  - {key: client, metadata: {plan: gold, deep: {a: 1}}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: path, metadata: {plan: none, deep: {a: 2, b: [x, true]}}, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: backend_name, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	fields := func(r *rlsv3.RateLimitResponse) string {
		text, err := json.Marshal(r.GetDynamicMetadata().AsMap())
		testkit.Must(t, err)
		return string(text)
	}
	ask := moved(t, limits, envoy.Config{Metadata: true})
	r := asking("client=a", "path=/")
	r.HitsAddend = 1
	const asked = `{"descriptors":[{"entries":["client=a"]},{"entries":["path=/"]}],"domain":"edge","hitsAddend":1,`
	if got := fields(ask(r)); got != asked+
		`"metadata":{"deep":{"a":1,"b":["x",true]},"plan":"gold"},"quotaModeEnabled":false}` {
		t.Errorf("admitted: %s", got)
	}
	if got := fields(ask(r)); got != asked+
		`"metadata":{"deep":{"a":2,"b":["x",true]},"plan":"none"},"quotaModeEnabled":false}` {
		t.Errorf("one of them over: %s", got)
	}
	ask(asking("backend_name=pt"))
	if got := fields(ask(asking("backend_name=pt", "backend_name=od"))); !strings.Contains(got,
		`"passedBackends":[{"backend_name":"od","model_name_override":""}],`+
			`"quotaModeEnabled":true,"quotaModeViolations":[0]`) {
		t.Errorf("quotas: %s", got)
	}
	if got := moved(t, limits, envoy.Config{})(r); got.DynamicMetadata != nil {
		t.Errorf("without --rls-metadata: %v", got.DynamicMetadata)
	}
}

// All limits as quotas: if one is over and another is not, or a descriptor has no limit, nothing is denied. As in
// envoyproxy/ratelimit, a descriptor without a limit is a quota that is never over. Two descriptors are one quota only
// if they are equal, whatever characters are in their values.
func TestQuotaModeForAll(t *testing.T) {
	ask := moved(t, `
domain: edge
descriptors:
  - {key: client, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: backend_name, rate_limit: {unit: minute, requests_per_unit: 1}}
`, envoy.Config{}, config.Options{Quota: true})
	for _, used := range []string{"client=a", "client=1;y=2", "backend_name=p|m"} {
		ask(asking(used))
	}
	for _, c := range []struct {
		request *rlsv3.RateLimitRequest
		want    rlsv3.RateLimitResponse_Code
	}{
		{asking("client=a"), rlsv3.RateLimitResponse_OVER_LIMIT},
		{asking("client=a", "client=b"), rlsv3.RateLimitResponse_OK},
		{asking("client=a", "free=x"), rlsv3.RateLimitResponse_OK},
		{asking("client=1;y=2", "client=1 y=2"), rlsv3.RateLimitResponse_OK},
		{asking("backend_name=p|m", "backend_name=p model_name_override=m|"), rlsv3.RateLimitResponse_OK},
	} {
		if resp := ask(c.request); resp.OverallCode != c.want ||
			resp.Statuses[0].Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%v: %v", c.request.Descriptors, resp)
		}
	}
}

// While no limit denies, a limit of 0 and a limit that a descriptor brings admit too.
func TestShadowModeForAll(t *testing.T) {
	ask := moved(t, "domain: edge\ndescriptors: [{key: none, rate_limit: {unit: minute, requests_per_unit: 0}},\n"+
		"  {key: one, rate_limit: {unit: minute, requests_per_unit: 1}}]\n", envoy.Config{},
		config.Options{Shadow: true})
	brought := asking("client=a")
	brought.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 2}
	ask(brought)
	for _, r := range []*rlsv3.RateLimitRequest{asking("none=x"), brought} {
		if resp := ask(r); resp.OverallCode != rlsv3.RateLimitResponse_OK ||
			resp.Statuses[0].Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%v", resp)
		}
	}
}
