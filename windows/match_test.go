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

func TestMatchIsTheFirstThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfN(somePattern, 1, 12).Draw(t, "patterns")
		rules := rulesOf(t, patterns...)
		for range 8 {
			key := someKey.Draw(t, "key")
			want := ""
			for i, p := range patterns {
				if naive(p, key) {
					want = fmt.Sprint(i)
					break
				}
			}
			got := ""
			if r := rules.Match(key); r != nil {
				got = r.Name()
			}
			if got != want {
				t.Fatalf("%q: rule %q, want %q", key, got, want)
			}
		}
	})
}

// A key has the first shadow rules that fit, in file order, whatever literals their patterns begin with.
func TestMatchHasTheFirstShadowRulesThatFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfN(somePattern, 1, 30).Draw(t, "patterns")
		list := rulesOf(t, patterns...).List()
		for _, r := range list {
			r.Shadow = true
		}
		rules, err := NewRules(list)
		testkit.Must(t, err)
		for range 8 {
			key := someKey.Draw(t, "key")
			var want, got []string
			for i, p := range patterns {
				if naive(p, key) && len(want) < MaxShadows {
					want = append(want, fmt.Sprint(i))
				}
			}
			if plan := rules.Match(key); plan != nil {
				for _, r := range plan.Shadows {
					got = append(got, r.Name)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%q: shadow rules %q, want %q", key, got, want)
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
		n += len(b.tries) + len(b.shadows)
	}
	if n != len(patterns) {
		t.Errorf("%d patterns are stored %d times", len(patterns), n)
	}
}

func BenchmarkMatch(b *testing.B) {
	many := []string{"api:*:write"}
	for i := range 1000 {
		many = append(many, fmt.Sprintf("tenant:%d:*", i))
	}
	for name, c := range map[string]struct {
		patterns []string
		key      string
	}{
		"one":     {[]string{"*"}, "user:42"},
		"few":     {[]string{"user:vip:*", "user:*", "ip:*", "path:*/login", "path:*", "*"}, "user:42"},
		"middle":  {[]string{"ip:*", "path:*/login", "path:*/logout", "path:*", "*"}, "path:/a/b/c"},
		"last":    {[]string{"user:vip:*", "user:*:a", "*:b", "*c", "*"}, "user:vip:42"},
		"many":    {append(many, "tenant:*", "*"), "tenant:500:42"},
		"nothing": {many, "user:42"},
	} {
		b.Run(name, func(b *testing.B) {
			rules := rulesOf(b, c.patterns...)
			for b.Loop() {
				rules.Match(c.key)
			}
		})
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
