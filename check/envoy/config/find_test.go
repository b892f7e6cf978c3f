package config

import (
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// descriptor makes one of "k=v k=v".
func descriptorOf(text string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for _, entry := range strings.Fields(text) {
		k, v, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func load(t testing.TB, path string, o ...Option) *Limits {
	t.Helper()
	l, err := Load(path, o...)
	testkit.Must(t, err)
	return l
}

const (
	second = rlsv3.RateLimitResponse_RateLimit_SECOND
	minute = rlsv3.RateLimitResponse_RateLimit_MINUTE
	hour   = rlsv3.RateLimitResponse_RateLimit_HOUR
	day    = rlsv3.RateLimitResponse_RateLimit_DAY
)

// What envoyproxy/ratelimit answers for these requests, and by which key ours counts.
func TestFind(t *testing.T) {
	for _, c := range []struct {
		domain, entries string
		key             string // empty: no limit
		want            Limit  // without Key, Rule; Multiplier 1 and the name in dots where it says none
	}{
		{"nowhere", "client=a", "", Limit{}},
		{"edge", "", "", Limit{}},
		{"edge", "source_cluster=proxy", "", Limit{}},
		{"edge", "source_cluster=other destination_cluster=backend", "", Limit{}},
		{"edge", "source_cluster=proxy destination_cluster=backend",
			"edge/source_cluster=proxy/destination_cluster=backend",
			Limit{PerUnit: 40, Unit: minute, Name: "edge.source_cluster_proxy.destination_cluster_backend"}},
		{"edge", "source_cluster=proxy destination_cluster=backend path=x", "", Limit{}},
		{"edge", "client=a", "edge/client=a", Limit{PerUnit: 20, Unit: minute, Name: "edge.client"}},
		{"edge", "client=", "edge/client=", Limit{PerUnit: 20, Unit: minute, Name: "edge.client"}},
		{"edge", "client=a plan=gold", "edge/client=a/plan=gold", Limit{PerUnit: 300, Unit: hour,
			Name: "edge.client.plan"}},
		{"edge", "client=a plan=banned", "edge/client=a/plan=banned", Limit{DenyAll: true, Unit: minute,
			Name: "edge.client.plan_banned"}},
		{"edge", "client=a plan=trial", "edge/client=a/plan=trial", Limit{PerUnit: 1, Unit: second, Shadow: true,
			Name: "edge.client.plan_trial"}},
		{"edge", "client=a probe=1", "edge/client=a/probe=1", Limit{Unlimited: true, Name: "edge.client.probe"}},
		{"edge", "plan=gold client=a", "", Limit{}},
		// An exact value is chosen for good, also where it has no limit.
		{"edge", "client=monitoring", "", Limit{}},
		{"edge", "client=batch plan=gold", "edge/client=batch/plan=gold",
			Limit{PerUnit: 7, Unit: day, Name: "edge.client_batch.plan_gold"}},
		{"edge", "client=batch plan=trial", "", Limit{}},
		{"edge", "42=true", "edge/42=true", Limit{PerUnit: 9, Unit: second, Name: "edge.42_true"}},
		{"edge", "Client=a", "", Limit{}},

		{"messages", "to_number=1", "messages/to_number=1", Limit{PerUnit: 100, Unit: day, Name: "per_number",
			Named: true}},
		{"messages", "campaign=x to_number=1", "messages/campaign=x/to_number=1",
			Limit{PerUnit: 500, Unit: day, Name: "campaign", Named: true, Replaces: []string{"per_number", "nobody"}}},
		{"messages", "staff=bo", "messages/staff=bo", Limit{Unlimited: true, Name: "messages.staff",
			Replaces: []string{"per_number"}}},
		{"messages", "backend_name=small", "messages/backend_name=small",
			Limit{PerUnit: 3, Unit: minute, Quota: true, Name: "messages.backend_name_small"}},

		{"paths", "path=/files/readme", "paths/path=%2Ffiles%2Freadme",
			Limit{PerUnit: 50, Unit: minute, Name: "paths.path_/files/readme"}},
		{"paths", "path=/files/a", "paths/path=%2Ffiles%2F*", Limit{PerUnit: 100, Unit: minute,
			Name: "paths.path_/files/*"}},
		{"paths", "path=/files/b", "paths/path=%2Ffiles%2F*", Limit{PerUnit: 100, Unit: minute,
			Name: "paths.path_/files/*"}},
		{"paths", "path=/files", "paths/path=%2Ffiles", Limit{PerUnit: 10, Unit: minute, Name: "paths.path_/f*"}},
		{"paths", "path=/api/x/v1", "paths/path=%2Fapi%2Fx%2Fv1", Limit{PerUnit: 11, Unit: minute,
			Name: "paths.path_/api*v1"}},
		{"paths", "path=/apiv1", "paths/path=%2Fapiv1", Limit{PerUnit: 11, Unit: minute, Name: "paths.path_/api*v1"}},
		{"paths", "path=/api/v12", "paths/path=%2Fapi%2Fv12", Limit{PerUnit: 1, Unit: minute, Name: "paths.path"}},
		{"paths", `path=a?c-e\-g`, `paths/path=a?c-e\-g`, Limit{PerUnit: 12, Unit: minute,
			Name: `paths.path_a?c*e\*g`}},
		{"paths", `path=abc-e\-g`, `paths/path=abc-e\-g`, Limit{PerUnit: 1, Unit: minute, Name: "paths.path"}},
		{"paths", "tenant=t-1 method=GET", "paths/tenant=t-*/method=GET",
			Limit{PerUnit: 60, Unit: minute, Name: "paths.tenant_t-*.method_GET"}},
		{"paths", "tenant=t-2 method=PUT", "paths/tenant=t-*/method=PUT",
			Limit{PerUnit: 6, Unit: minute, Name: "paths.tenant_t-*.method"}},
		{"paths", "tenant=u-2 method=PUT", "", Limit{}},
		{"paths", "tenant=t-1", "", Limit{}},
	} {
		t.Run(c.domain+" "+c.entries, func(t *testing.T) {
			l := load(t, "testdata/working")
			got, ok := l.Find(c.domain, descriptorOf(c.entries))
			if !ok || c.key == "" {
				if ok || c.key != "" {
					t.Fatalf("%+v, %t; want the key %q", got, ok, c.key)
				}
				return
			}
			c.want.Key = c.key
			if !c.want.Unlimited {
				c.want.Multiplier = 1
			}
			plan := got.Plan
			got.Plan, got.Labels, got.Metadata, got.Detailed = nil, nil, nil, false
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if none := c.want.Unlimited || c.want.DenyAll; none != (plan == nil) {
				t.Fatalf("plan %+v", plan)
			} else if none {
				return
			}
			rule := plan.Rules()[0]
			if plan != l.rules.Match(c.key) || rule.Shadow != (c.want.Shadow || c.want.Quota) ||
				rule.Windows[0].Limit != int64(c.want.PerUnit) {
				t.Errorf("rule %+v, by its key %+v", rule, l.rules.Match(c.key))
			}
		})
	}
}

func TestUnitsAsLongAsThere(t *testing.T) {
	l := load(t, "testdata/working/units.yaml")
	const day = 24 * time.Hour
	for value, want := range map[string]windows.Window{
		"second": {Limit: 1, Per: time.Second}, "minute": {Limit: 2, Per: time.Minute},
		"hour": {Limit: 3, Per: time.Hour}, "day": {Limit: 4, Per: day},
		"week": {Limit: 5, Per: 7 * day}, "month": {Limit: 6, Per: 30 * day},
		"year": {Limit: 4294967295, Per: 365 * day}, "ten": {Limit: 7, Per: 10 * time.Minute},
	} {
		got, ok := l.Find("units", descriptorOf("u="+value))
		if !ok || got.Plan.Rules()[0].Windows[0] != want {
			t.Errorf("%s: %+v, want %+v", value, got, want)
		}
	}
	if got, _ := l.Find("units", descriptorOf("u=ten")); got.Multiplier != 10 || got.Unit != minute {
		t.Errorf("%+v", got)
	}
}

func TestReplaced(t *testing.T) {
	l := load(t, "testdata/working/messages.yml")
	for _, c := range []struct {
		entries []string
		want    []bool
	}{
		{[]string{"to_number=1", "campaign=x to_number=1"}, []bool{true, false}},
		{[]string{"campaign=x to_number=1", "to_number=1"}, []bool{false, true}},
		{[]string{"to_number=1", "to_number=2"}, []bool{false, false}},
		{[]string{"staff=bo", "to_number=1"}, []bool{false, true}},
	} {
		var limits []Limit
		for _, e := range c.entries {
			limit, ok := l.Find("messages", descriptorOf(e))
			if !ok {
				t.Fatal(e)
			}
			limits = append(limits, limit)
		}
		if diff := cmp.Diff(c.want, Replaced(limits)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.entries, diff)
		}
	}
	// Only names that were given can be replaced, never an unlimited limit.
	got := Replaced([]Limit{{Name: "a.b"}, {Name: "a.b", Named: true, Unlimited: true}, {Replaces: []string{"a.b"}}})
	if diff := cmp.Diff([]bool{false, false, false}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheTagStandsInBraces(t *testing.T) {
	l := load(t, "testdata/working", Tag("client"))
	for entries, want := range map[string]string{
		"client=a":               "edge/{client=a}",
		"client=a plan=gold":     "edge/{client=a}/plan=gold",
		"client=batch plan=gold": "edge/{client=batch}/plan=gold",
	} {
		if got, ok := l.Find("edge", descriptorOf(entries)); !ok || got.Key != want || l.rules.Match(want) != got.Plan {
			t.Errorf("%s: %+v", entries, got)
		}
	}
}

// A key over 512 bytes still fits its rule, and differs where the values do.
func TestLongKeys(t *testing.T) {
	for _, tag := range []string{"", "client"} {
		l := load(t, "testdata/working", Tag(tag))
		long := strings.Repeat("é/", 300)
		seen := map[string]string{}
		for _, entries := range []string{
			"client=" + long, "client=" + long + "x", "client=" + long + " plan=" + long,
			"client=" + long + " plan=trial", "client=a plan=" + long,
			"client=b plan=" + long,
		} {
			got, ok := l.Find("edge", descriptorOf(entries))
			if !ok || len(got.Key) > 512 || l.rules.Match(got.Key) != got.Plan {
				t.Fatalf("tag %q, %.40s…: %+v", tag, entries, got)
			}
			if first, twice := seen[got.Key]; twice {
				t.Errorf("%.40s… and %.40s… share %s", first, entries, got.Key)
			}
			seen[got.Key] = entries
		}
		got, _ := l.Find("paths", descriptorOf("path=/api/"+long+"/v1"))
		if got.PerUnit != 11 || !strings.HasPrefix(got.Key, "paths/path=%2Fapi") ||
			!strings.HasSuffix(got.Key, "~v1") || len(got.Key) > 512 {
			t.Errorf("%+v", got)
		}
	}
}

// A server without limits goes by its rules; with limits by these alone. Keys
// asked for as they are always have the rules.
func TestFindInAServer(t *testing.T) {
	l := load(t, "testdata/working")
	rules, err := windows.NewRules([]*windows.Rule{
		{Name: "users", Match: "user:*", Windows: []windows.Window{{Limit: 1, Per: time.Minute}}, Shadow: true},
		{Name: "clients", Match: "edge/client=*", Windows: []windows.Window{{Limit: 2, Per: time.Minute}}},
	})
	testkit.Must(t, err)
	for _, c := range []struct {
		limits  *Limits
		domain  string
		d       *commonv3.RateLimitDescriptor
		key     string
		perUnit int64 // 0: no limit
	}{
		{nil, "streamcounter", descriptorOf("key=user:1"), "user:1", 1},
		{l, "streamcounter", descriptorOf("key=user:1"), "user:1", 1},
		{l, "streamcounter", descriptorOf("key=nobody"), "nobody", 0},
		{nil, "streamcounter", overridden("key=user:1", 7, typev3.RateLimitUnit_DAY), "user:1", 1},
		{nil, "edge", descriptorOf("client=a"), "edge/client=a", 2},
		{l, "edge", descriptorOf("client=a"), "edge/client=a", 20},
		{nil, "edge", descriptorOf("path=a"), "edge/path=a", 0},
		{nil, "edge", overridden("path=a", 7, typev3.RateLimitUnit_DAY), "edge/path=a;per=86400s", 7},
		{l, "edge", overridden("path=a", 7, typev3.RateLimitUnit_DAY), "edge/path=a;per=86400s", 7},
		{nil, "edge", overridden("client=a", 7, typev3.RateLimitUnit_UNKNOWN), "edge/client=a", 2},
		{l, "nowhere", descriptorOf("client=a"), "", 0},
	} {
		got, ok := Find(c.limits, rules, c.domain, c.d, "")
		if got.Key != c.key || ok != (c.perUnit > 0) || ok && got.Plan.Rules()[0].Windows[0].Limit != c.perUnit {
			t.Errorf("%s %v: %+v, %t; want %s and %d", c.domain, c.d, got, ok, c.key, c.perUnit)
		}
		if ok && got.Shadow != (got.Plan.Live == nil) {
			t.Errorf("%+v: shadow %t", got, got.Plan.Live == nil)
		}
	}
}

// The sum in a cut key could be what a pattern looks for, and its marks never.
func TestCutKeysFitNoOtherPattern(t *testing.T) {
	l, err := parse([]reload.File{{Path: "f.yaml", Data: []byte(`domain: d
descriptors:
  - {key: k, value: "*0*", rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k, value: "b*b*b*b", rate_limit: {unit: day, requests_per_unit: 6}}
  - {key: k, value: "*bb", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: k, value: "b*b*b", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: k, value: "b*/*b", rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: k, rate_limit: {unit: day, requests_per_unit: 5}}
`)}}, options{})
	testkit.Must(t, err)
	long := strings.Repeat("c", 600)
	for value, want := range map[string]uint32{
		long: 5, long + "0": 1, "b" + long + "/b": 4, "b/" + long + "b": 4, "b" + long + "b" + long + "b": 2,
		"b" + long + "b": 5, long + "bb": 3, "bcb" + long + "b": 2, "b" + long + "/bb": 3,
	} {
		got, ok := l.Find("d", entriesOf("k", value))
		if !ok || got.PerUnit != want || l.rules.Match(got.Key) != got.Plan || api.ValidateKey(got.Key) != nil {
			t.Errorf("%.3s…%s: %+v, want %d", value, value[len(value)-2:], got, want)
		}
	}
}
