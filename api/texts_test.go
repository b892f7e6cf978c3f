package api_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// TestTexts: each line has what a text is read as, and the text, with escapes of Go. {{a 3}} is aaa.
func TestTexts(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, _ string, lines []string) []string {
		return testkit.Steps(lines, "> ", func(line string) []string {
			as, text, _ := strings.Cut(line, ": ")
			text, err := strconv.Unquote(`"` + testkit.Repeat(text) + `"`)
			testkit.Must(t, err)
			return []string{read(t, as, text)}
		})
	})
}

func read(t *testing.T, as, text string) string {
	switch as {
	case "key":
		return good(api.Event{Key: text, Count: 1}.Validate())
	case "count":
		n, err := strconv.ParseInt(text, 10, 64)
		testkit.Must(t, err)
		return good(api.Event{Key: "a", Count: n}.Validate())
	case "token":
		return api.KeyToken(text)
	case "short":
		return api.Shorten(text)
	case "call":
		ctx := api.WithIdempotency(t.Context(), api.Idempotency{Key: text})
		return api.IdempotencyKey(api.Nth(ctx, 1)).Key
	case "target":
		return target(t, text)
	}
	n, _, err := api.ParseNetwork(as)
	testkit.Must(t, err)
	return fmt.Sprint(n.Contains(text))
}

// good returns an error with its name, which a caller can branch on.
func good(err error) string {
	if err == nil {
		return "good"
	}
	return fmt.Sprintf("%s: %v", api.NameOf(err), err)
}

// target reads a target as a key, a pattern or a network. Its own text must be read as the same target.
func target(t *testing.T, text string) string {
	key, several, err := api.ParseTarget(text)
	if err != nil {
		return good(err)
	}
	again := several
	if several == "" {
		again = api.TargetOfKey(key)
	}
	if k, s, err := api.ParseTarget(again); k != key || s != several || err != nil {
		t.Errorf("%s is named %s, which is %q %q, %v", text, again, k, s, err)
	}
	if n, ok, _ := api.ParseNetwork(several); ok {
		return "network " + n.Prefix + " " + n.Addresses.String()
	}
	if several != "" {
		return "pattern " + several
	}
	return fmt.Sprintf("key %q", key)
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
