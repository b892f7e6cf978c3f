package config

import (
	"path/filepath"
	"strings"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// limited is a descriptor with a limit.
func limited(key, value string, n uint32, unit rlsconf.RateLimitUnit) *rlsconf.RateLimitDescriptor {
	return &rlsconf.RateLimitDescriptor{Key: key, Value: value,
		RateLimit: &rlsconf.RateLimitPolicy{Unit: unit, RequestsPerUnit: n}}
}

// below is a descriptor with others below it, as Envoy Gateway names routes: key and value alike.
func below(name string, nested ...*rlsconf.RateLimitDescriptor) *rlsconf.RateLimitDescriptor {
	return &rlsconf.RateLimitDescriptor{Key: name, Value: name, Descriptors: nested}
}

// unknown adds a field that the published package does not know.
func unknown(d *rlsconf.RateLimitDescriptor, number protowire.Number, v uint64) *rlsconf.RateLimitDescriptor {
	d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v))
	return d
}

func shadowed(d *rlsconf.RateLimitDescriptor) *rlsconf.RateLimitDescriptor {
	d.ShadowMode = true
	return d
}

// Resources make the same limits as a file with the same words.
func TestResourcesAreWhatFilesAre(t *testing.T) {
	second, month := rlsconf.RateLimitUnit_SECOND, rlsconf.RateLimitUnit(5)
	named := limited("rule-0-match-0", "", 10, second)
	named.RateLimit.Name, named.RateLimit.Replaces = "client", []*rlsconf.RateLimitReplace{{Name: "all"}}
	free := &rlsconf.RateLimitDescriptor{Key: "staff", RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true}}
	detailed := limited("rule-1-match-0", "", 5, second)
	detailed.DetailedMetric = true
	got, err := FromResources([]*rlsconf.RateLimitConfig{
		{Name: "first", Domain: "eg/first", Descriptors: []*rlsconf.RateLimitDescriptor{
			below("first-route", named, limited("rule-0-match-0", "client-a", 15, second),
				shadowed(limited("rule-2-match-0", "x", 0, second)), free),
			below("second-route", below("ns/policy/rule/0", detailed)),
		}},
		{Name: "ns/policy", Domain: "ns/policy", Descriptors: []*rlsconf.RateLimitDescriptor{
			limited("masked_remote_address", "192.168.0.0/16", 5, month),
			unknown(limited("files", "a*", 7, second), quotaMode, 1),
		}},
	}, Options{})
	testkit.Must(t, err)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "1.yaml"), `
domain: eg/first
descriptors:
  - key: first-route
    value: first-route
    descriptors:
      - {key: rule-0-match-0, rate_limit: {unit: second, requests_per_unit: 10, name: client, replaces: [{name: all}]}}
      - {key: rule-0-match-0, value: client-a, rate_limit: {unit: second, requests_per_unit: 15}}
      - {key: rule-2-match-0, value: x, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
      - {key: staff, rate_limit: {unlimited: true}}
  - key: second-route
    value: second-route
    descriptors:
      - key: ns/policy/rule/0
        value: ns/policy/rule/0
        descriptors:
          - {key: rule-1-match-0, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 5}}
`)
	writeFile(t, filepath.Join(dir, "2.yaml"), `
domain: ns/policy
descriptors:
  - {key: masked_remote_address, value: 192.168.0.0/16, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: files, value: "a*", quota_mode: true, rate_limit: {unit: second, requests_per_unit: 7}}
`)
	want := load(t, dir)
	if got.rules.Fingerprint() != want.rules.Fingerprint() || got.Len() != want.Len() || len(got.Warnings()) != 0 {
		t.Errorf("%d limits %s, want %d limits %s; warnings %v", got.Len(), got.rules.Fingerprint(), want.Len(),
			want.rules.Fingerprint(), got.Warnings())
	}
	for _, c := range [][2]string{
		{"eg/first", "first-route=first-route rule-0-match-0=b"},
		{"eg/first", "first-route=first-route rule-0-match-0=client-a"},
		{"eg/first", "first-route=first-route rule-2-match-0=x"},
		{"eg/first", "first-route=first-route staff=x"},
		{"eg/first", "second-route=second-route ns/policy/rule/0=ns/policy/rule/0 rule-1-match-0=1.2.3.4"},
		{"ns/policy", "masked_remote_address=192.168.0.0/16"},
		{"ns/policy", "files=abc"},
	} {
		have, ok := got.Find(c[0], descriptorOf(c[1]))
		expected, _ := want.Find(c[0], descriptorOf(c[1]))
		have.Plan, expected.Plan = nil, nil
		if diff := cmp.Diff(expected, have); diff != "" || !ok {
			t.Errorf("%v: found %t (-file +resource):\n%s", c, ok, diff)
		}
	}
}

func TestBustedResources(t *testing.T) {
	second := rlsconf.RateLimitUnit_SECOND
	self := limited("a", "", 1, second)
	self.RateLimit.Name, self.RateLimit.Replaces = "x", []*rlsconf.RateLimitReplace{{Name: "x"}}
	forever := limited("a", "", 1, second)
	forever.RateLimit.Unlimited = true
	deep := limited("a", "", 1, second)
	for range maxDepth {
		deep = below("b", deep)
	}
	for what, c := range map[string]struct {
		list []*rlsconf.RateLimitDescriptor
		want string
	}{
		"no key": {[]*rlsconf.RateLimitDescriptor{limited("", "x", 1, second)}, `descriptors[0].key: key ""`},
		"no unit": {[]*rlsconf.RateLimitDescriptor{limited("a", "", 1, 0)},
			`descriptors[0].rate_limit: unit is missing`},
		"odd unit": {[]*rlsconf.RateLimitDescriptor{limited("a", "", 1, 99)},
			`descriptors[0].rate_limit.unit: unit "99"`},
		"self":      {[]*rlsconf.RateLimitDescriptor{self}, `cannot replace itself`},
		"unlimited": {[]*rlsconf.RateLimitDescriptor{forever}, `unit "second": an unlimited limit has none`},
		"depth":     {[]*rlsconf.RateLimitDescriptor{deep}, `nested deeper than 16`},
		"twice": {[]*rlsconf.RateLimitDescriptor{
			below("r", limited("a", "b", 1, second), limited("a", "b", 2, second))},
			`descriptors[0].descriptors[1].key: key "a" with value "b" is given twice; ` +
				`first in descriptors[0].descriptors[0]`},
	} {
		l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "edge", Descriptors: append(c.list,
			limited("good", "", 3, second))}}, Options{})
		testkit.Must(t, err)
		if good, ok := l.Find("edge", descriptorOf("good=x")); !ok || good.PerUnit != 3 {
			t.Errorf("%s: the limit beside it is %+v", what, good)
		}
		if _, ok := l.Find("edge", descriptorOf("a=x")); ok {
			t.Errorf("%s: it is in force", what)
		}
		if err = l.Refused(); err == nil || !strings.HasPrefix(err.Error(), `resource "eg": `) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	for _, domain := range []string{"", ownDomain} {
		l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: domain}, {Name: "b", Domain: "edge"},
			{Name: "c", Domain: "edge"}}, Options{})
		testkit.Must(t, err)
		if err := l.Refused(); err == nil || !strings.HasPrefix(err.Error(), `2 mistakes: resource "eg": domain: `) ||
			!strings.Contains(err.Error(), `; resource "c": domain: domain "edge": b has it already`) ||
			l.domains["edge"] == nil {
			t.Errorf("domain %q: %v", domain, err)
		}
	}
	l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "edge",
		Descriptors: []*rlsconf.RateLimitDescriptor{unknown(limited("a", "", 1, second), 12, 1)}}}, Options{})
	testkit.Must(t, err)
	if w := l.Warnings(); len(w) != 1 || !strings.Contains(w[0], `resource "eg": descriptors[0]: unknown field 12`) {
		t.Errorf("warnings %v", w)
	}
}

// Files of one domain are merged if the option says so. The same descriptor at the top of two of them is still a
// mistake.
func TestMergedDomains(t *testing.T) {
	dir := t.TempDir()
	first, other := filepath.Join(dir, "1.yaml"), filepath.Join(dir, "2.yaml")
	writeFile(t, first, oneLimit)
	writeFile(t, other, "domain: edge\non_deny: charge\ndescriptors:\n"+
		"  - {key: path, rate_limit: {unit: minute, requests_per_unit: 4}}\n")
	if _, err := open(dir); err == nil || !strings.Contains(err.Error(), "--rls-merge-domains") {
		t.Errorf("without: %v", err)
	}
	l := load(t, dir, Options{MergeDomains: true})
	for entry, want := range map[string]windows.OnDeny{"client=a": windows.OnDenySkip, "path=b": windows.OnDenyCharge} {
		limit, ok := l.Find("edge", descriptorOf(entry))
		if !ok || limit.Plan.Live.OnDeny != want {
			t.Errorf("%s: %+v, %t; want on_deny %s", entry, limit, ok, want)
		}
	}
	writeFile(t, other, oneLimit)
	if _, err := open(dir, Options{MergeDomains: true}); err == nil || !strings.HasPrefix(err.Error(), other+":3:") ||
		!strings.Contains(err.Error(), "first in "+first+", line 3") {
		t.Errorf("twice: %v", err)
	}
	second := rlsconf.RateLimitUnit_SECOND
	l, err := FromResources([]*rlsconf.RateLimitConfig{
		{Name: "a", Domain: "edge", Descriptors: []*rlsconf.RateLimitDescriptor{limited("x", "", 1, second)}},
		{Name: "b", Domain: "edge", Descriptors: []*rlsconf.RateLimitDescriptor{limited("x", "", 1, second)}},
	}, Options{MergeDomains: true})
	testkit.Must(t, err)
	if err = l.Refused(); err == nil || !strings.Contains(err.Error(), `first in descriptors[0] of resource "a"`) {
		t.Errorf("resources: %v", err)
	}
}

// Labels name a limit as the statistics of envoyproxy/ratelimit do.
func TestLabels(t *testing.T) {
	l := load(t, testkit.WriteFile(t, "limits.yaml", `
domain: edge
descriptors:
  - {key: plain, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: exact, value: v, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: star, value: "a*", rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: live
    value_to_metric: true
    descriptors: [{key: plain, rate_limit: {unit: second, requests_per_unit: 1}}]
  - {key: shared, value: "a*", share_threshold: true, value_to_metric: true, detailed_metric: true,
     rate_limit: {unit: second, requests_per_unit: 1}}
`))
	for entries, want := range map[string]string{
		"plain=x": "edge plain", "exact=v": "edge exact_v", "star=abc": "edge star_a*", "detail=x": "edge detail_x",
		"detail=": "edge detail", "live=x plain=y": "edge live_x plain", "shared=abc": "edge shared_a*",
	} {
		limit, ok := l.Find("edge", descriptorOf(entries))
		if got := strings.Join(limit.Labels, " "); !ok || got != want {
			t.Errorf("%s: %q, want %q", entries, got, want)
		}
	}
	if got := strings.Join(LabelsOf("edge", descriptorOf("a=b c=")), " "); got != "edge a_b c" {
		t.Errorf("of a descriptor: %q", got)
	}
}

// The modes for all limits, those of descriptors too.
func TestModesOfAllLimits(t *testing.T) {
	path := testkit.WriteFile(t, "limits.yaml", oneLimit)
	brought := overridden("client=a", 2, typev3.RateLimitUnit_MINUTE)
	for _, c := range []struct {
		option          Options
		watched, quota  bool
		shadow, levels  bool
		describesLimits string
	}{
		{Options{Shadow: true}, true, false, true, true, "shadow"},
		{Options{Quota: true}, false, true, true, true, "quota"},
		{Options{Unlevelled: true}, false, false, false, false, "no levels"},
	} {
		l := load(t, path, c.option)
		limit, _ := l.Find("edge", descriptorOf("client=a"))
		rule := limit.Plan.Rules()[0]
		if limit.Watched != c.watched || limit.Quota != c.quota ||
			rule.Shadow != c.shadow || rule.Unlevelled == c.levels {
			t.Errorf("%s: %+v %+v", c.describesLimits, limit, rule)
		}
		own, ok := l.Find("edge", brought)
		if !ok || own.Watched != c.watched || own.Quota != c.quota || own.Plan.Rules()[0].Shadow != c.shadow {
			t.Errorf("%s, a limit of the descriptor: %+v", c.describesLimits, own)
		}
	}
}
