package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
