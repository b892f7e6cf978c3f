package api_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// A penalty that the library has not written is an error, and its entry becomes a dead letter.
func TestForeignPenalties(t *testing.T) {
	for text, want := range map[string]string{"1,2,3": "", "2,2,3": "", "0,2,3": "step 0", "3,2,3": "step 3",
		"1,2": "expected", "1,2,3,4": "expected", "1,2,x": "expected", "1,2,-3": "until -3"} {
		f, err := api.ReadInForce(func(string) string { return text })
		if err == nil {
			err = api.Transition{Rule: "api", Key: "k", State: api.StateThrottled, Level: 100, WindowMs: 1, Version: 1,
				InForce: f}.Validate()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
