package api_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
)

func TestTargets(t *testing.T) {
	for text, want := range map[string][2]string{
		"user:42": {"user:42", ""}, "tenant:acme:*": {"", "tenant:acme:*"}, "a?": {"", "a?"}, `a\*b`: {"a*b", ""},
		`a\\b`: {`a\b`, ""}, `a\**`: {"", `a\**`}, `\u`: {"u", ""},
	} {
		key, pattern, err := api.ParseTarget(text)
		if err != nil || key != want[0] || pattern != want[1] {
			t.Errorf("%s: %q %q %v", text, key, pattern, err)
		}
	}
	bad := []string{"", `a\`, "a\n*", "\xff*", strings.Repeat("a", 512) + "*", "a\n", strings.Repeat("a", 513)}
	for _, text := range bad {
		if _, _, err := api.ParseTarget(text); !errors.Is(err, api.ErrBadKey) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every key has a target that means it alone.
func TestTargetOfKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[a-z*?\\:]{1,20}`).Draw(t, "key")
		got, pattern, err := api.ParseTarget(api.TargetOfKey(key))
		if got != key || pattern != "" || err != nil {
			t.Fatalf("%q: %q %q %v", key, got, pattern, err)
		}
	})
}
