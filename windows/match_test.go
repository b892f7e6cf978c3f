package windows

import (
	"fmt"
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
