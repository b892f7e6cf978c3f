package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// generator draws configurations and requests from few keys and pieces of
// values, so that they meet.
type generator struct{ keys, pieces []string }

// Odd characters, bytes that are not UTF-8, and long values, which are cut, are among them.
var hostile = generator{
	[]string{"a", "b", "t", "k/=", "é", "a*", "*=*", "ab*"},
	[]string{"", "a", "b", "/", "ab", "=", "%2F", "{", "?", `\`, "é", "~", "2F", "0", "D",
		"\xff", "\x00\u0085",
		strings.Repeat("long/", 20), strings.Repeat("y", 60)},
}

func (g generator) key(t *rapid.T) string { return rapid.SampledFrom(g.keys).Draw(t, "key") }

func (g generator) text(t *rapid.T, what string, most int) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(g.pieces), 0, most).Draw(t, what), "")
}

// drawn is the file of all descriptors.
var drawn = &file{Document: new(document.Document), name: "f", domain: "d"}

// descriptors makes a level of a configuration, without repeats.
func (g generator) descriptors(t *rapid.T, tag string, depth int) []*descriptor {
	var out []*descriptor
	seen := map[[2]string]bool{}
	for range rapid.IntRange(0, 5-depth).Draw(t, "descriptors") {
		r := &descriptor{in: drawn, key: g.key(t)}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			r.value = g.text(t, "value", 2)
		case 1, 2:
			r.value = g.text(t, "before", 1) + "*"
			if r.key != tag {
				r.value += g.text(t, "after", 1)
				if rapid.Bool().Draw(t, "more") {
					r.value += "*" + g.text(t, "last", 1)
				}
			} else if len(r.value) > 20 {
				r.value = "*" // more than a long tag is sure to keep
			}
			r.share = rapid.Bool().Draw(t, "share")
		}
		if id := [2]string{r.key, r.value}; !seen[id] {
			seen[id] = true
			out = append(out, r)
		}
		if rapid.IntRange(0, 3).Draw(t, "limit") > 0 {
			r.limit = &rateLimit{
				unit: "minute", per: time.Minute, multiplier: 1,
				perUnit:   int64(rapid.IntRange(0, 1000).Draw(t, "requests")),
				unlimited: rapid.IntRange(0, 5).Draw(t, "unlimited") == 0,
			}
		}
		if depth < 3 {
			r.nested = g.descriptors(t, tag, depth+1)
		}
	}
	return out
}

// limits builds a configuration.
func (g generator) limits(t *rapid.T) (*Limits, []*descriptor) {
	tag := rapid.SampledFrom([]string{"", "t"}).Draw(t, "tag")
	list := g.descriptors(t, tag, 1)
	f := *drawn
	f.descriptors = list
	l, err := build([]*file{&f}, Options{Tag: tag})
	testkit.Must(t, err)
	return l, list
}

// request mostly follows the configuration.
func (g generator) request(t *rapid.T, list []*descriptor) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for range rapid.IntRange(1, 3).Draw(t, "entries") {
		key, value := g.key(t), g.text(t, "value", 8)
		if len(list) > 0 && rapid.IntRange(0, 5).Draw(t, "follow") > 0 {
			r := rapid.SampledFrom(list).Draw(t, "descriptor")
			key, list = strings.ReplaceAll(r.key, "*", g.text(t, "star of the key", 2)), r.nested
			if rapid.IntRange(0, 4).Draw(t, "unchanged") == 0 {
				d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: r.key, Value: r.value})
				continue
			}
			for i, piece := range strings.Split(r.value, "*") {
				switch {
				case r.value == "":
					value += strings.Repeat("é/", rapid.SampledFrom([]int{0, 0, 0, 200}).Draw(t, "long"))
				case i == 0:
					value = piece
				default:
					value += g.text(t, "star", 8) + strings.Repeat("é/",
						rapid.SampledFrom([]int{0, 0, 0, 200}).Draw(t, "long")) + piece
				}
			}
		}
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// A worker finds by the key alone the same limit that Find finds by the descriptor.
func TestKeysFitTheirRule(t *testing.T) {
	found, cut := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l, list := hostile.limits(t)
		for range 20 {
			d := hostile.request(t, list)
			limit, ok := l.Find("d", d)
			if !ok {
				continue
			}
			testkit.Must(t, api.ValidateKey(limit.Key))
			if l.tag != "" && strings.Contains(limit.Key, "{") {
				if tag := tagOf(limit.Key); !strings.HasPrefix(tag, l.tag+"=") {
					t.Fatalf("%q has the tag %q", limit.Key, tag)
				}
			}
			if limit.Plan == nil {
				continue
			}
			found++
			if strings.Contains(limit.Key, "~") {
				cut++
			}
			if first := l.rules.Match(limit.Key); first != limit.Plan {
				t.Fatalf("%v has the key %q and the rule %q, by its key %+v", d, limit.Key,
					limit.Plan.Rules()[0].Match, first)
			}
		}
	})
	t.Logf("%d limits found, %d with cut keys", found, cut)
	least := 100
	if testing.Short() { // rapid draws a fifth
		least /= 5
	}
	if found < least || cut < least/20 {
		t.Errorf("only %d limits were found, %d with cut keys", found, cut)
	}
}

// Find against a second reading of the configuration, on the values as they are.
//
// Patterns are compared with values as written, so one whose later piece begins
// with the end of an escape (*2F) also takes a value that ends in one (a/). No
// piece here does.
func TestFindAgainstANaiveReading(t *testing.T) {
	tame := hostile
	tame.pieces = slices.DeleteFunc(slices.Clone(tame.pieces), func(p string) bool {
		return p != "" &&
			strings.Contains("0123456789ABCDEF", p[:1])
	})
	runs, found := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		l, list := tame.limits(t)
		for range 20 {
			d := tame.request(t, list)
			want := naive(list, d.GetEntries())
			limit, ok := l.Find("d", d)
			if ok != (want != nil) {
				t.Fatalf("%v: found %+v, want %+v", d, limit, want)
			}
			if !ok {
				continue
			}
			found++
			if limit.Unlimited != want.unlimited || !limit.Unlimited &&
				(int64(limit.PerUnit) != want.perUnit || limit.DenyAll != (want.perUnit == 0)) {
				t.Fatalf("%v: found %+v, want %+v", d, limit, want)
			}
			if limit.Plan != nil && limit.Plan.Rules()[0].Windows[0].Limit != want.perUnit {
				t.Fatalf("%v: rule %+v", d, limit.Plan)
			}
		}
	})
	if found < runs { // some four in each
		t.Errorf("only %d limits were found in %d runs", found, runs)
	}
}

// naive walks the descriptors as the documentation of envoyproxy/ratelimit puts it.
func naive(list []*descriptor, entries []*commonv3.RateLimitDescriptor_Entry) *rateLimit {
	var chosen *descriptor
	for want := range 3 { // exact, pattern, key alone
		for _, r := range list {
			key, value := entries[0].GetKey(), entries[0].GetValue()
			if chosen == nil && [...]bool{
				r.key == key && r.value == value && value != "",
				r.rank() == 1 && naiveFit(r.key, key) && (r.value == "" || naiveFit(r.value, value)),
				r.key == key && r.value == "",
			}[want] {
				chosen = r
			}
		}
	}
	switch {
	case chosen == nil:
		return nil
	case len(entries) == 1:
		return chosen.limit
	}
	return naive(chosen.nested, entries[1:])
}

func naiveFit(pattern, text string) bool {
	if pattern == "" || text == "" {
		return strings.Trim(pattern, "*") == text
	}
	if pattern[0] == '*' {
		return naiveFit(pattern[1:], text) || naiveFit(pattern, text[1:])
	}
	return pattern[0] == text[0] && naiveFit(pattern[1:], text[1:])
}

// Different descriptors have different keys, as long as none is cut; any is valid.
func TestKeysAreInjective(t *testing.T) {
	word := rapid.OneOf(rapid.StringN(0, 6, -1), rapid.SampledFrom([]string{"", "a", "/", "=", "a=b", "/a=b", "%",
		"%2F", "{", "}", "a}", ";", "~", "\xff", "\x00", "\u0085", "\ufffd"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }))
	draw := func(t *rapid.T, what string) (string, *commonv3.RateLimitDescriptor) {
		return rapid.OneOf(rapid.Just("d"), word).Draw(t, what+" domain"), drawEntries(t, word, what)
	}
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.SampledFrom([]string{"", "a", "/"}).Draw(t, "tag")
		domain1, d1 := draw(t, "one")
		domain2, d2 := draw(t, "other")
		if domain1 == ownDomain || domain2 == ownDomain {
			return
		}
		one, other := Key(domain1, d1, tag), Key(domain2, d2, tag)
		if same := domain1 == domain2 && d1.String() == d2.String(); same != (one == other) {
			t.Fatalf("%q %v and %q %v: %q and %q", domain1, d1, domain2, d2, one, other)
		}
		if err := api.ValidateKey(one); err != nil && one != "" {
			t.Fatal(err)
		}
	})
}

func drawEntries(t *rapid.T, word *rapid.Generator[string], what string) *commonv3.RateLimitDescriptor {
	var list []string
	for range rapid.IntRange(0, 3).Draw(t, what) {
		list = append(list, word.Draw(t, what+" key"), word.Draw(t, what+" value"))
	}
	return entriesOf(list...)
}

// Any bytes as a configuration: an error, or limits whose rules are good. (That these agree with what Find finds is a
// property, TestKeysFitTheirRule.)
func FuzzConfig(f *testing.F) {
	for _, pattern := range []string{"testdata/working/*", "testdata/busted_*.yml"} {
		files, err := filepath.Glob(pattern)
		testkit.Must(f, err)
		for _, name := range files {
			data, err := os.ReadFile(name)
			testkit.Must(f, err)
			f.Add(data, "client")
		}
	}
	f.Add([]byte("domain: d\ndescriptors: &a [{key: k, descriptors: *a}]"), "")
	f.Add([]byte("domain: d\ndescriptors:\n- &x {key: k, rate_limit: &l {unit: day, requests_per_unit: 1}, "+
		"descriptors: [{key: j, rate_limit: *l}, {key: j, value: '*', rate_limit: *l}]}"), "j")
	f.Fuzz(func(t *testing.T, data []byte, tag string) {
		if len(data) > 16<<10 || len(tag) > maxTagName {
			return
		}
		l, err := parse([]reload.File{{Path: "f.yaml", Data: data}}, Options{Tag: tag})
		if err != nil {
			return
		}
		if _, err := windows.NewRules(l.rules.List()); err != nil && len(l.rules.List()) > 0 {
			t.Fatal(err)
		}
	})
}
