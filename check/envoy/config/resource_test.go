package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
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

// Resources make the same limits as files with the same words: testdata/resources has both.
func TestResourcesAreWhatFilesAre(t *testing.T) {
	var resources []*rlsconf.RateLimitConfig
	for _, name := range []string{"first", "policy"} {
		text, err := os.ReadFile("testdata/resources/" + name + ".textproto")
		testkit.Must(t, err)
		r := new(rlsconf.RateLimitConfig)
		testkit.Must(t, prototext.Unmarshal(text, r))
		resources = append(resources, r)
	}
	unknown(resources[1].Descriptors[1], quotaMode, 1)
	got, err := FromResources(resources, Options{})
	testkit.Must(t, err)
	want := load(t, "testdata/resources")
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
	const limit = ` rate_limit { unit: SECOND requests_per_unit: 1 `
	for _, c := range []struct{ descriptor, want string }{
		{`value: "x"` + limit + `}`, `descriptors[0].key: key ""`},
		{`key: "a" rate_limit { requests_per_unit: 1 }`, `descriptors[0].rate_limit: unit is missing`},
		{`key: "a" rate_limit { requests_per_unit: 1 unit: 99 }`, `descriptors[0].rate_limit.unit: unit "99"`},
		{`key: "a"` + limit + `name: "x" replaces { name: "x" } }`, `cannot replace itself`},
		{`key: "a"` + limit + `unlimited: true }`, `unit "second": an unlimited limit has none`},
		{strings.Repeat(`key: "b" descriptors { `, maxDepth) + `key: "a"` + limit + strings.Repeat(`}`, maxDepth+1),
			`nested deeper than 16`},
		{`key: "r" descriptors { key: "a" value: "b"` + limit + `} } descriptors { key: "a" value: "b"` + limit + `} }`,
			`descriptors[0].descriptors[1].key: key "a" with value "b" is given twice; first in ` +
				`descriptors[0].descriptors[0]`},
	} {
		d := new(rlsconf.RateLimitDescriptor)
		testkit.Must(t, prototext.Unmarshal([]byte(c.descriptor), d))
		l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "edge",
			Descriptors: []*rlsconf.RateLimitDescriptor{d, limited("good", "", 3, rlsconf.RateLimitUnit_SECOND)}}},
			Options{})
		testkit.Must(t, err)
		if good, ok := l.Find("edge", descriptorOf("good=x")); !ok || good.PerUnit != 3 {
			t.Errorf("%s: the limit beside it is %+v", c.descriptor, good)
		}
		if _, ok := l.Find("edge", descriptorOf("a=x")); ok {
			t.Errorf("%s: it is in force", c.descriptor)
		}
		fails(t, l.Refused(), `resource "eg": `, c.want)
	}
	for _, domain := range []string{"", ownDomain} {
		l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: domain}, {Name: "b", Domain: "edge"},
			{Name: "c", Domain: "edge"}}, Options{})
		testkit.Must(t, err)
		fails(t, l.Refused(), `2 mistakes: resource "eg": domain: `,
			`; resource "c": domain: domain "edge": b has it already`)
		if l.domains["edge"] == nil {
			t.Errorf("domain %q: the other domain is not in force", domain)
		}
	}
	l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "edge",
		Descriptors: []*rlsconf.RateLimitDescriptor{
			unknown(limited("a", "", 1, rlsconf.RateLimitUnit_SECOND), 12, 1)}}},
		Options{})
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
	_, err := open(dir)
	fails(t, err, "--rls-merge-domains")
	l := load(t, dir, Options{MergeDomains: true})
	for entry, want := range map[string]windows.OnDeny{"client=a": windows.OnDenySkip, "path=b": windows.OnDenyCharge} {
		limit, ok := l.Find("edge", descriptorOf(entry))
		if !ok || limit.Plan.Live.OnDeny != want {
			t.Errorf("%s: %+v, %t; want on_deny %s", entry, limit, ok, want)
		}
	}
	writeFile(t, other, oneLimit)
	_, err = open(dir, Options{MergeDomains: true})
	fails(t, err, other+":3:", "first in "+first+", line 3")
	second := rlsconf.RateLimitUnit_SECOND
	l, err = FromResources([]*rlsconf.RateLimitConfig{
		{Name: "a", Domain: "edge", Descriptors: []*rlsconf.RateLimitDescriptor{limited("x", "", 1, second)}},
		{Name: "b", Domain: "edge", Descriptors: []*rlsconf.RateLimitDescriptor{limited("x", "", 1, second)}},
	}, Options{MergeDomains: true})
	testkit.Must(t, err)
	fails(t, l.Refused(), `first in descriptors[0] of resource "a"`)
}
