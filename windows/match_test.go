package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// naive is a simple implementation of globs: it tries every way to split the key.
func naive(pattern, key string) bool {
	if pattern == "" {
		return key == ""
	}
	c, n := utf8.DecodeRuneInString(pattern)
	k, m := utf8.DecodeRuneInString(key)
	switch c {
	case '*':
		return naive(pattern[n:], key) || (m > 0 && naive(pattern, key[m:]))
	case '?':
		return m > 0 && naive(pattern[n:], key[m:])
	case '\\':
		pattern = pattern[n:]
		c, n = utf8.DecodeRuneInString(pattern)
	}
	return m > 0 && c == k && naive(pattern[n:], key[m:])
}

// rulesOf makes a rule of each pattern, named by its place.
func rulesOf(t testkit.Failer, patterns ...string) *Rules {
	t.Helper()
	list := make([]*Rule, len(patterns))
	for i, p := range patterns {
		list[i] = &Rule{Name: fmt.Sprint(i), Match: p, Windows: []Window{{Limit: 1, Per: time.Second}}}
	}
	rules, err := NewRules(list)
	testkit.Must(t, err)
	return rules
}

// Few letters, so that keys often fit patterns; é and €, because characters are not bytes.
var (
	somePattern = rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"*", "*", "?", "a", "a", "b", "é", "€", ":", `\*`, `\?`,
			`\\`, `\a`, `\é`}), 1, 9)
		return strings.Join(parts.Draw(t, "parts"), "")
	})
	someKey = rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "a", "b", "é", "€", ":", "*", "?", `\`}), 0, 12)
		return strings.Join(parts.Draw(t, "parts"), "")
	})
)

// A key has the first live rule that fits, and the first shadow rules, in file order, whatever literals their patterns
// begin with.
func TestMatchIsTheFirstThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfN(rapid.OneOf(somePattern, rapid.Just("*")), 1, 30).Draw(t, "patterns")
		list := rulesOf(t, patterns...).List()
		for _, r := range list {
			r.Shadow = rapid.IntRange(0, 5).Draw(t, "live") > 0
		}
		rules, err := NewRules(list)
		testkit.Must(t, err)
		for range 8 {
			key := someKey.Draw(t, "key")
			var live string
			var want, got []string
			for _, r := range list {
				switch fits := naive(r.Match, key); {
				case fits && r.Shadow && len(want) < MaxShadows:
					want = append(want, r.Name)
				case fits && !r.Shadow && live == "":
					live = r.Name
				}
			}
			plan := rules.Match(key)
			if plan == nil && live+strings.Join(want, "") == "" {
				continue
			}
			for _, r := range plan.Shadows {
				got = append(got, r.Name)
			}
			if (plan.Live == nil) != (live == "") || live != "" && plan.Live.Name != live || !slices.Equal(got, want) {
				t.Fatalf("%q: %+v, shadow rules %q; want %q, %q", key, plan.Live, got, live, want)
			}
		}
	})
}

// Each pattern is stored once. With literals that begin with each other, copies would take memory by the square.
func TestEachPatternIsStoredOnce(t *testing.T) {
	patterns := []string{"a*"}
	for i := range 100 {
		patterns = append(patterns, fmt.Sprintf("a*%d*", i), fmt.Sprintf(`a\*%d*`, i))
	}
	rules := rulesOf(t, slices.Concat(patterns[1:], patterns[:1])...)
	n := 0
	for _, b := range rules.branches {
		n += len(b.live) + len(b.shadows)
	}
	if n != len(patterns) {
		t.Errorf("%d patterns are stored %d times", len(patterns), n)
	}
}

// Without the bound, this takes far too long.
func TestHostileKeyIsBounded(t *testing.T) {
	rules := rulesOf(t, strings.Repeat("*a", 20)+"*b*", "*")
	if r := rules.Match(strings.Repeat("a", 512)); r.Name() != "1" {
		t.Errorf("rule %s, want 1", r.Name())
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	rules := rulesOf(t, "user:*", "*:a*b*", "é?")
	for _, key := range []string{"user:42", "x:axxxb", "éa", "none"} {
		if n := testing.AllocsPerRun(100, func() { rules.Match(key) }); n != 0 {
			t.Errorf("%q: %v allocations", key, n)
		}
	}
}

func TestCombineKeepsTheRulesAndTheirOrder(t *testing.T) {
	make := func(name, match string) *Rules {
		r, err := NewRules([]*Rule{{Name: name, Match: match, Windows: []Window{{Limit: 1, Per: time.Second}}}})
		testkit.Must(t, err)
		return r
	}
	first, second := make("a", "x:*"), make("b", "*")
	both, err := Combine(first, second)
	testkit.Must(t, err)
	if both.Match("x:1").Live != first.List()[0] || both.Match("y").Live != second.List()[0] ||
		both.Named("b") != second.List()[0] {
		t.Error("not the rules that were given")
	}
	if r, err := Combine(second, first); err != nil || r.Match("x:1").Live != second.List()[0] {
		t.Error("not in the order given", err)
	}
	if _, err := Combine(first, second, make("a", "z")); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Error(err)
	}
}

func TestUnreachableRulesAreTold(t *testing.T) {
	for _, c := range []struct {
		first, second string
		never         bool
	}{
		{"*", "user:*", true}, {"user:*", "user:*", true}, {"user:*", "user:42", true}, {"user:*", "user:vip:*", true},
		{"user:?", "user:4", true}, {"user:?*", "user:??", true}, {"*:admin", "user:*:admin", true},
		{`a\*`, `a\*`, true}, {"a**", "a*", true},
		{"*?", "?*", true}, {"a?*", "a*?", true}, {"?*", "*?*", true}, {"?*", "*", true}, {"*?*?*", "??*", true},
		{"*?", "?", true}, {`?\*`, "?*", false}, {"a?*", "a*", false}, {"??*", "*?", false},
		{"user:*", "*", false}, {"user:?", "user:42", false}, {"user:?", "user:*", false},
		{"user:?*", "user:*", false}, {"*:admin", "user:*", false},
		{`a\*`, "a*", false}, {`a\*`, "ab", false}, {"a?c", "a*c", false}, {"a", "ab", false}, {"ab", "a", false},
	} {
		file := fmt.Sprintf("rules:\n  - {name: shadow, match: '*', windows: [{limit: 1, per: 1s}], shadow: true}\n"+
			"  - {name: first, match: '%s', windows: [{limit: 1, per: 1s}]}\n  - {name: second, match: '%s', "+
			"windows: [{limit: 1, per: 1s}]}\n", c.first, c.second)
		rules, err := Parse("rules.yml", []byte(file))
		testkit.Must(t, err)
		got := fmt.Sprint(rules.Warnings())
		if want := `rules.yml:4:27: match "` + strings.ReplaceAll(c.second, `\`, `\\`) +
			`"`; (len(rules.Warnings()) == 1) != c.never || c.never && !strings.HasPrefix(got, "["+want) {
			t.Errorf("%s above %s: %s, never reached: %t", c.first, c.second, got, c.never)
		}
	}
}

// A key has at most MaxShadows shadow rules, the first in the file: one more for the same keys is never evaluated.
func TestOneShadowTooManyIsTold(t *testing.T) {
	file := "rules:\n"
	for i := range MaxShadows {
		file += fmt.Sprintf("  - {name: s%d, match: 'u:*', windows: [{limit: 1, per: 1s}], shadow: true}\n", i)
	}
	for match, want := range map[string]string{"u:*": `match "u:*": the rule "last" is never evaluated`,
		"u:1": `"s7" above it`, "*": "[]"} {
		rules, err := Parse("rules.yml", []byte(file+"  - {name: last, match: '"+match+
			"', windows: [{limit: 1, per: 1s}], shadow: true}\n"))
		testkit.Must(t, err)
		if got := fmt.Sprint(rules.Warnings()); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", match, got, want)
		}
	}
}

// There is no warning about a rule that some key reaches.
func TestNoFalseWarning(t *testing.T) {
	warned := 0
	rapid.Check(t, func(t *rapid.T) {
		list := make([]*Rule, rapid.IntRange(2, 12).Draw(t, "rules"))
		for i := range list {
			list[i] = &Rule{Name: fmt.Sprint(i), Match: somePattern.Draw(t, "pattern"),
				Windows: []Window{{Limit: 1, Per: time.Second}}, Shadow: rapid.IntRange(0, 3).Draw(t, "shadow") == 0}
		}
		live := func(r *Rule) bool { return !r.Shadow }
		if first := slices.IndexFunc(list, live); first >= 0 { // so one is never reached
			list = append(list, &Rule{Name: "last", Match: list[first].Match, Windows: list[first].Windows})
		}
		rules, err := NewRules(list)
		testkit.Must(t, err)
		never := unreachable(rules.list)
		warned += len(never)
		for range 20 {
			key := someKey.Filter(func(key string) bool { return key != "" }).Draw(t, "key")
			for i := range never {
				if slices.Contains(rules.Match(key).Rules(), rules.list[i]) {
					t.Fatalf("%q: rule %s is evaluated, of which %v says never", key, rules.list[i].Name, never)
				}
			}
		}
	})
	if warned == 0 {
		t.Error("no rule was found to be never reached: nothing was tested")
	}
}
