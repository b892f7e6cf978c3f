package api_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
)

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
