package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// descriptorOf makes a descriptor of "k=v k=v".
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

// fails checks that an error has these parts.
func fails(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q", err, part)
		}
	}
}

func load(t testing.TB, path string, o ...Options) *Limits {
	t.Helper()
	l, err := open(path, o...)
	testkit.Must(t, err)
	return l
}

// A story is a file of testdata/stories: limits (none: those of testdata/working), a line of dashes, and one step a
// line. A step is a domain with entries, where limit=5/minute*2 is a limit that the descriptor brings, or the word
// rules. A line "# options: tag=client labels" sets options. The limit that was found follows each step; -update
// writes it.
func TestStories(t *testing.T) {
	testkit.StoriesIn(t, "testdata/stories", func(t *testing.T, _, under string, steps []string) []string {
		option := map[string]string{}
		for _, field := range strings.Fields(regexp.MustCompile("(?m)^# options: .*").FindString(under)) {
			name, value, _ := strings.Cut(field, "=")
			option[name] = cmp.Or(value, "yes")
		}
		limits := "testdata/working"
		if strings.Contains(under, "domain: ") {
			limits = testkit.WriteFile(t, "limits.yaml", under)
		}
		l := load(t, limits, Options{Tag: option["tag"], Shadow: option["shadow"] != "", Quota: option["quota"] != "",
			Unlevelled: option["unlevelled"] != ""})
		return testkit.Steps(steps, "  ", func(line string) (out []string) {
			domain, entries, _ := strings.Cut(line, " ")
			if domain != "rules" {
				return []string{found(t, l, domain, entries, option["labels"] != "")}
			}
			for _, r := range l.rules.List() {
				out = append(out, r.Match+"\t"+r.Name)
			}
			return out
		})
	})
}

// found returns the limit of a descriptor as text.
func found(t *testing.T, l *Limits, domain, entries string, labels bool) string {
	t.Helper()
	entries, brought, brings := strings.Cut(entries, " limit=")
	d := descriptorOf(entries)
	if brings {
		var n, multiplier uint32
		var unit string
		_, err := fmt.Sscanf(strings.NewReplacer("/", " ", "*", " ").Replace(brought+"*1"), "%d %s %d", &n, &unit,
			&multiplier)
		testkit.Must(t, err)
		d = overridden(entries, n, typev3.RateLimitUnit(typev3.RateLimitUnit_value[strings.ToUpper(unit)]), multiplier)
	}
	got, ok := l.Find(domain, d)
	if !ok {
		return "no limit"
	}
	if labels {
		return strings.Join(got.Labels, ", ")
	}
	said := fmt.Sprintf("%s, %s (named %t, replaces %q): %d/%s*%d", got.Key, got.Name, got.Named, got.Replaces,
		got.PerUnit, got.Unit, got.Multiplier)
	for i, is := range []bool{got.Unlimited, got.DenyAll, got.Shadow, got.Quota, got.Watched} {
		if is {
			said += [...]string{" unlimited", " denies all", " shadow", " quota", " watched"}[i]
		}
	}
	if got.Plan == nil {
		return said
	}
	rule := got.Plan.Rules()[0]
	if !brings && got.Plan != l.rules.Match(got.Key) || rule.Shadow != (got.Shadow || got.Quota || got.Watched) {
		t.Errorf("%s %s: rule %+v, by its key %+v", domain, entries, rule, l.rules.Match(got.Key))
	}
	if rule.Unlevelled {
		said += " without levels"
	}
	return fmt.Sprintf("%s, %d per %s", said, rule.Windows[0].Limit, rule.Windows[0].Per)
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

func entriesOf(list ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for i := 0; i < len(list); i += 2 {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: list[i], Value: list[i+1]})
	}
	return d
}

func TestKey(t *testing.T) {
	for _, c := range []struct {
		domain, tag string
		entries     []string
		want        string
	}{
		{"edge", "", nil, "edge"},
		{"edge", "", []string{"path", "a"}, "edge/path=a"},
		{"edge", "tenant", []string{"tenant", "acme", "path", "a"}, "edge/{tenant=acme}/path=a"},
		{"edge", "tenant", []string{"path", "a", "tenant", "acme", "tenant", "b"},
			"edge/path=a/{tenant=acme}/tenant=b"},
		{"edge", "absent", []string{"path", "a"}, "edge/path=a"},
		{"e/d", "", []string{"a=b", "c{d}e;f%g~h"}, "e%2Fd/a%3Db=c%7Bd%7De%3Bf%25g%7Eh"},
		{"edge", "", []string{"k", "ü\x00\n\x7f\u0085\xff\xc3\ufffd"}, "edge/k=ü%00%0A%7F%C2%85%FF%C3%EF%BF%BD"},
		{"edge", "", []string{"", ""}, "edge/="},
		{"streamcounter", "", []string{"key", "user:42/{x}"}, "user:42/{x}"},
		{"streamcounter", "", []string{"key", "a", "key", "b"}, "streamcounter/key=a/key=b"},
		{"streamcounter", "", []string{"user", "a"}, "streamcounter/user=a"},
	} {
		if got := Key(c.domain, entriesOf(c.entries...), c.tag); got != c.want {
			t.Errorf("%q %q tag %q: %q, want %q", c.domain, c.entries, c.tag, got, c.want)
		}
	}
}

// tagOf returns the tag that Redis Cluster and our partitions use.
func tagOf(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// A key that is cut keeps its tag, whatever is before the tag and however long it is.
func TestCutKeysKeepTheirTag(t *testing.T) {
	x := strings.Repeat("x", 600)
	for _, tenant := range []string{"acme", strings.Repeat("é", 63), strings.Repeat("ü/", 200)} {
		want := tagOf(Key("edge", entriesOf("tenant", tenant), "tenant"))
		for _, d := range []*commonv3.RateLimitDescriptor{
			entriesOf("tenant", tenant, "path", x), entriesOf("path", x, "tenant", tenant),
			entriesOf("a", "b", "tenant", tenant, "path", x[:400]),
			entriesOf("path", x[:430], "tenant", tenant), entriesOf("path", x[:430], "tenant", tenant, "path", x),
		} {
			key := Key("edge", d, "tenant")
			if err := api.ValidateKey(key); err != nil || tagOf(key) != want || want == "" {
				t.Errorf("%q has the tag %q, want %q; %v", key, tagOf(key), want, err)
			}
		}
	}
	one, other := Key("edge", entriesOf("path", x+"1"), ""), Key("edge", entriesOf("path", x+"2"), "")
	if one == other || len(one) != 512 || one[447] != '~' || one[:447] != other[:447] {
		t.Errorf("%q\n%q", one, other)
	}
}

func TestCutKeepsCharactersAndEscapesWhole(t *testing.T) {
	for n, want := range map[int]string{-1: "", 0: "", 1: "", 2: "é", 3: "é", 4: "é", 5: "é%2F", 6: "é%2Fx",
		9: "é%2Fx"} {
		if got := string(cut([]byte("é%2Fx"), n)); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}
