package config

import (
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func overridden(entries string, requests uint32, unit typev3.RateLimitUnit,
	multiplier ...uint32) *commonv3.RateLimitDescriptor {
	d := descriptorOf(entries)
	d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests, Unit: unit}
	for _, m := range multiplier {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(m)
	}
	return d
}

// The stories tell which key and window an override has.
func TestOverride(t *testing.T) {
	l := load(t, "testdata/working", Options{Tag: "client"})
	first, _ := l.Find("edge", overridden("client=a plan=trial", 5, typev3.RateLimitUnit_MINUTE))
	if again, _ := l.Find("edge", overridden("client=b", 5, typev3.RateLimitUnit_SECOND, 60)); first.Plan == nil ||
		again.Plan != first.Plan {
		t.Error("checks under the same override cannot share a run of the script")
	}
	long, _ := l.Find("edge", overridden("client="+strings.Repeat("c", 200)+" path="+strings.Repeat("x", 600), 5,
		typev3.RateLimitUnit_DAY))
	if err := api.ValidateKey(long.Key); err != nil || !strings.HasSuffix(long.Key, ";per=86400s") ||
		tagOf(long.Key) != tagOf(Key("", entriesOf("client", strings.Repeat("c", 200)), "client")) {
		t.Errorf("%s %v", long.Key, err)
	}
}

func TestOverridesThatCannotBe(t *testing.T) {
	l := load(t, "testdata/working")
	for what, d := range map[string]*commonv3.RateLimitDescriptor{
		"unit UNKNOWN: want second":        overridden("client=a", 5, typev3.RateLimitUnit_UNKNOWN),
		"unit 99: want second":             overridden("client=a", 5, 99),
		"unit_multiplier 0: want 1 to 366": overridden("client=a", 5, typev3.RateLimitUnit_DAY, 0),
		"unit_multiplier 367: want 1":      overridden("client=a", 5, typev3.RateLimitUnit_DAY, 367),
	} {
		fails(t, ValidateBrought("edge", d), what)
		if got, ok := l.Find("edge", d); !ok || got.PerUnit != 20 {
			t.Errorf("%s: not what is configured: %+v", what, got)
		}
	}
	fails(t, ValidateBrought(ownDomain, overridden("key=a", 5, typev3.RateLimitUnit_DAY)), "limits of the rules file")
	testkit.Must(t, ValidateBrought("edge", descriptorOf("client=a")))
}

// Callers can bring any number of limits.
func TestOverrideRulesAreBounded(t *testing.T) {
	for n := range uint32(2 * mostOverrideRules) {
		_, err := broughtLimit("edge", overridden("client=a", n+1, typev3.RateLimitUnit_DAY), "",
			broughtOptions{onDeny: windows.OnDenySkip})
		testkit.Must(t, err)
	}
	if n := overridePlans().Len(); n != mostOverrideRules {
		t.Errorf("%d rules are kept", n)
	}
}
