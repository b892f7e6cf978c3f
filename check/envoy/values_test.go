package envoy_test

import (
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// Rules that count values of descriptors, with a rule before, between and after them.
var valueRules = []*windows.Rule{
	{Name: "inner", Match: "edge/ip=10.*", Windows: []windows.Window{{Limit: 100, Per: time.Hour}}},
	{Name: "stuffing", Match: "edge/ip=*", Windows: []windows.Window{
		{Limit: 2, Per: time.Minute, Distinct: "user", ValueFrom: "login"}, {Limit: 100, Per: time.Hour}}},
	{Name: "cards", Match: "edge/card=*", Windows: []windows.Window{
		{Limit: 1, Per: time.Minute, Distinct: "account", ValueFrom: "account"}}},
	{Name: "needs", Match: "needs/*", Windows: []windows.Window{{Limit: 1, Per: time.Minute, Distinct: "user"}}},
	{Name: "rest", Match: "edge/*", Windows: []windows.Window{{Limit: 1, Per: time.Hour}}},
}

// An entry that a rule names is a value, and not a part of the key. The order of the file decides between rules.
func TestValuesFromEntries(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), valueRules...)
	client := w.dial(t, envoy.Config{})
	ask := func(domain string, descriptor string) (rlsv3.RateLimitResponse_Code, error) {
		got, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: domain,
			Descriptors: descriptors(descriptor)})
		return got.GetOverallCode(), err
	}
	const ok, over = rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT
	for _, c := range []struct {
		descriptor string
		want       rlsv3.RateLimitResponse_Code
		key        string // by which it is counted
		used       int64
	}{
		{"ip=192.0.2.1 login=alice", ok, "edge/ip=192.0.2.1", 1},
		{"login=bob ip=192.0.2.1", ok, "edge/ip=192.0.2.1", 2},
		{"ip=192.0.2.1 login=alice", ok, "edge/ip=192.0.2.1", 2},
		{"ip=192.0.2.1 login=carol", over, "edge/ip=192.0.2.1", 2},
		{"ip=192.0.2.2 login=carol", ok, "edge/ip=192.0.2.2", 1},
		{"ip=10.0.0.1 login=alice", ok, "edge/ip=10.0.0.1/login=alice", 1}, // the rule before takes it as it is
		{"card=1 account=a", ok, "edge/card=1", 1},
		{"card=1 account=b", over, "edge/card=1", 1},
		{"path=x login=alice", ok, "edge/path=x/login=alice", 1}, // no rule with this value matches it
		{"path=x login=alice", over, "edge/path=x/login=alice", 1},
	} {
		got, err := ask("edge", c.descriptor)
		if err != nil || got != c.want || w.used(t, c.key) != c.used {
			t.Errorf("%s: %v, %v, %s used %d: want %v and %d", c.descriptor, got, err, c.key, w.used(t, c.key), c.want,
				c.used)
		}
	}
	for descriptor, domain := range map[string]string{"user=alice": "needs", "ip=192.0.2.1": "edge",
		"ip=192.0.2.1 login=" + string(make([]byte, 257)): "edge"} {
		if _, err := ask(domain, descriptor); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%.20s without a value: %v", descriptor, err)
		}
	}
}
