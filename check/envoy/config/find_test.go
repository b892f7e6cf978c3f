package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// descriptor makes a descriptor of "k=v k=v".
func descriptorOf(text string) *commonv3.RateLimitDescriptor {
	var list []string
	for _, entry := range strings.Fields(text) {
		k, v, _ := strings.Cut(entry, "=")
		list = append(list, k, v)
	}
	return entriesOf(list...)
}

// open reads one file, or those of a directory.
func open(path string, o ...Options) (*Limits, error) {
	s, err := NewSource(SourceConfig{Limits: path, Options: append(o, Options{})[0]})
	if err != nil {
		return nil, err
	}
	return s.Limits(), nil
}

func load(t testing.TB, path string, o ...Options) *Limits {
	t.Helper()
	l, err := open(path, o...)
	testkit.Must(t, err)
	return l
}

const (
	second = rlsv3.RateLimitResponse_RateLimit_SECOND
	minute = rlsv3.RateLimitResponse_RateLimit_MINUTE
)

// testdata/find.txt has requests, each with a domain and entries, and the answers of envoyproxy/ratelimit under
// testdata/working: the key that counts here, the name of the limit, what the answer says, and the window.
func TestFind(t *testing.T) {
	const path = "testdata/find.txt"
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	l := load(t, "testdata/working")
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "  ") {
			continue
		}
		if out = append(out, line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		domain, entries, _ := strings.Cut(line, " ")
		got, ok := l.Find(domain, descriptorOf(entries))
		if !ok {
			out = append(out, "  no limit")
			continue
		}
		said := fmt.Sprintf("  %s, %s (named %t, replaces %q): %d/%s*%d", got.Key, got.Name, got.Named, got.Replaces,
			got.PerUnit, got.Unit, got.Multiplier)
		for i, is := range []bool{got.Unlimited, got.DenyAll, got.Shadow, got.Quota} {
			if is {
				said += [...]string{" unlimited", " denies all", " shadow", " quota"}[i]
			}
		}
		if plan := got.Plan; plan != nil {
			rule := plan.Rules()[0]
			said += fmt.Sprintf(", %d per %s", rule.Windows[0].Limit, rule.Windows[0].Per)
			if plan != l.rules.Match(got.Key) || rule.Shadow != (got.Shadow || got.Quota) {
				t.Errorf("%s: rule %+v, by its key %+v", line, rule, l.rules.Match(got.Key))
			}
		}
		out = append(out, said)
	}
	testkit.Golden(t, path, strings.Join(out, "\n")+"\n")
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
	l := load(t, "testdata/working", Options{Tag: "client"})
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

// A server without limits uses its rules; a server with limits uses only the limits. Keys that are asked for as they
// are always use the rules.
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
`)}}, Options{})
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

// A star in a key or a value takes what it takes in envoyproxy/ratelimit, whose patterns are the key, _ and the
// value. Envoy Gateway names a route without a host by a star, as key and as value.
func TestStars(t *testing.T) {
	const route = "httproute/default/nohost/rule/0/match/0/"
	day := rlsconf.RateLimitUnit_DAY
	list := []*rlsconf.RateLimitDescriptor{
		below(route+"*", limited("rule-0-match-0", "*", 1, day)),
		below(route+"*_example_com", limited("rule-0-match-0", "", 2, day)),
		below(route+"*_b_example_com", limited("rule-0-match-0", "", 3, day)),
		below(route+"www_example_com", limited("rule-0-match-0", "", 4, day)),
		limited("k", "v*", 5, day), limited("k*", "v*", 6, day), limited("k*", "v", 7, day), limited("k*", "", 8, day),
		limited("k", "", 9, day), limited("k", "v*v*", 10, day),
	}
	l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "d", Descriptors: list}}, Options{})
	testkit.Must(t, err)
	testkit.Must(t, l.Refused())
	for _, c := range []struct {
		entries []string
		want    uint32
	}{
		{[]string{route + "*", route + "*", "rule-0-match-0", "a"}, 1},
		{[]string{route + "x", route + "y", "rule-0-match-0", ""}, 1},
		{[]string{route + "*_example_com", route + "*_example_com", "rule-0-match-0", "a"}, 2},
		{[]string{route + "*_b_example_com", route + "*_b_example_com", "rule-0-match-0", "a"}, 3},
		{[]string{route + "www_example_com", route + "www_example_com", "rule-0-match-0", "a"}, 4},
		{[]string{"httproute/default/other/rule/0/match/0/*", route + "*", "rule-0-match-0", "a"}, 0},
		{[]string{"k", "v"}, 5}, {[]string{"k", "v*"}, 5}, {[]string{"k", "vv"}, 5}, {[]string{"k", "v*v*"}, 10},
		{[]string{"kx", "v"}, 6}, {[]string{"k*", "v*"}, 6}, {[]string{"kx", "vx"}, 6}, {[]string{"k*", "v"}, 7},
		{[]string{"kx", "x"}, 8}, {[]string{"k", "x"}, 8}, {[]string{"kx", ""}, 8}, {[]string{"x", "v"}, 0},
	} {
		got, ok := l.Find("d", entriesOf(c.entries...))
		if ok != (c.want > 0) || got.PerUnit != c.want {
			t.Errorf("%q: %+v, want %d", c.entries, got, c.want)
		}
		if ok && l.rules.Match(got.Key) != got.Plan {
			t.Errorf("%q: a worker finds %+v by %s", c.entries, l.rules.Match(got.Key), got.Key)
		}
	}
	if n := len(l.Dump()); n != l.Len() || n != 10 {
		t.Errorf("%d limits and %d lines, want 10 of both", l.Len(), n)
	}
}

// A path of any length is counted: by a sum of the path, and of the values where a star takes any.
func TestLongPaths(t *testing.T) {
	name, day := func(c string) string { return strings.Repeat(c, 200) }, rlsconf.RateLimitUnit_DAY
	client := name("d")[:maxTagName]
	list := []*rlsconf.RateLimitDescriptor{below(name("a"), below(name("b"), below(name("c"), below("method",
		limited(client, name("d"), 1, day), limited(client, "", 2, day), limited("masked", "*"+name("e"), 3, day))))),
		limited("*a*", "", 4, day)}
	for _, tag := range []string{"", "method", client, "none"} {
		seen := map[string]bool{}
		l, err := FromResources([]*rlsconf.RateLimitConfig{{Name: "eg", Domain: "eg", Descriptors: list}},
			Options{Tag: tag})
		testkit.Must(t, errors.Join(err, l.Refused()))
		for _, c := range []struct {
			key, value string
			want       uint32
		}{
			{client, name("d"), 1}, {client, "x", 2}, {client, name("x"), 2}, {client, "", 2},
			{"masked", name("e"), 3}, {"masked", "x" + name("e"), 3}, {"masked", name("e") + "x", 0},
		} {
			got, ok := l.Find("eg", entriesOf(name("a"), name("a"), name("b"), name("b"), name("c"), name("c"),
				"method", "method", c.key, c.value))
			if got.PerUnit != c.want {
				t.Errorf("tag %.9s, %.9s=%.9s: %+v, want %d", tag, c.key, c.value, got, c.want)
			}
			if !ok {
				continue
			}
			testkit.Must(t, api.ValidateKey(got.Key))
			if l.rules.Match(got.Key) != got.Plan || seen[got.Key] ||
				strings.Contains(got.Key, "/{"+tag+"=") != (tag == "method" || tag == c.key) {
				t.Errorf("tag %.9s, %.9s=%.9s: %s, seen %t, rule %+v", tag, c.key, c.value, got.Key, seen[got.Key],
					l.rules.Match(got.Key))
			}
			seen[got.Key] = true
		}
	}
}
