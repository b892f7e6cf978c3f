package config

import (
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"

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

func TestOverride(t *testing.T) {
	l := load(t, "testdata/working", Options{Tag: "client"})
	find := func(d *commonv3.RateLimitDescriptor) Limit {
		t.Helper()
		limit, ok := l.Find("edge", d)
		if !ok {
			t.Fatal("no limit")
		}
		return limit
	}
	first := find(overridden("client=a plan=trial", 5, typev3.RateLimitUnit_MINUTE))
	if first.Key != "edge/{client=a}/plan=trial;per=60s" || first.Shadow ||
		first.Name != "edge.client_a.plan_trial" || first.Named || first.PerUnit != 5 ||
		first.Plan.Live.Windows[0].Limit != 5 || first.Plan.Live.Windows[0].Per != time.Minute ||
		!first.Plan.Live.Unlevelled {
		t.Errorf("%+v %+v", first, first.Plan.Live)
	}
	if again := find(overridden("client=b", 5, typev3.RateLimitUnit_SECOND, 60)); again.Plan != first.Plan {
		t.Error("checks under the same override cannot share a run of the script")
	}
	// The same window is the same count, whatever it allows; another is another.
	if again := find(overridden("client=a plan=trial", 6, typev3.RateLimitUnit_SECOND, 60)); again.Key != first.Key ||
		again.Multiplier != 60 || again.Unit != second {
		t.Errorf("%+v", again)
	}
	if other := find(overridden("client=a plan=trial", 5, typev3.RateLimitUnit_HOUR)); other.Key == first.Key {
		t.Errorf("%+v", other)
	}
	if not := find(overridden("nothing=configured", 5,
		typev3.RateLimitUnit_YEAR)); not.Key != "edge/nothing=configured;per=31536000s" {
		t.Errorf("%+v", not)
	}
	if deny := find(overridden("client=a", 0, typev3.RateLimitUnit_DAY)); !deny.DenyAll || deny.Plan != nil {
		t.Errorf("%+v", deny)
	}
	if _, ok := l.Find("nowhere", overridden("client=a", 5, typev3.RateLimitUnit_DAY)); ok {
		t.Error("a domain that is not configured has no limit, brought along or not")
	}
	long := find(overridden("client="+strings.Repeat("c", 200)+" path="+strings.Repeat("x", 600), 5,
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
		if err := ValidateBrought("edge", d); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
		if got, ok := l.Find("edge", d); !ok || got.PerUnit != 20 {
			t.Errorf("%s: not what is configured: %+v", what, got)
		}
	}
	if err := ValidateBrought(ownDomain, overridden("key=a", 5, typev3.RateLimitUnit_DAY)); err == nil {
		t.Error("a key that is asked for as it is has the rules file's limits")
	}
	if err := ValidateBrought("edge", descriptorOf("client=a")); err != nil {
		t.Error(err)
	}
}

// Callers can bring any number of limits.
func TestOverrideRulesAreBounded(t *testing.T) {
	for n := range uint32(2 * mostOverrideRules) {
		if _, err := broughtLimit("edge", overridden("client=a", n+1, typev3.RateLimitUnit_DAY), "",
			bringing{onDeny: windows.OnDenySkip}); err != nil {
			t.Fatal(err)
		}
	}
	if n := overridePlans().Len(); n != mostOverrideRules {
		t.Errorf("%d rules are kept", n)
	}
}
