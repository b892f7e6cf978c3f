package glob_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/glob"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestGlob(t *testing.T) {
	for _, x := range []struct {
		pattern, text string
		fits          bool
	}{
		{"user:*", "user:42", true}, {"user:*", "user:", true}, {"user:*", "tenant:1", false},
		{"api", "api", true}, {"api", "api2", false}, {"?pi", "api", true}, {"*-eu", "login-eu", true},
		{`a\*`, "a*", true}, {`a\*`, "ab", false}, {"*", "", true}, {"*", "all: of it", true},
	} {
		g, err := glob.Parse(x.pattern)
		testkit.Must(t, err)
		if g.Fits(x.text) != x.fits {
			t.Errorf("%q fits %q: %v, want %v", x.text, x.pattern, !x.fits, x.fits)
		}
	}
	for pattern, want := range map[string]string{"": "empty", "a\x00": "control", `a\`: "lone"} {
		if _, err := glob.Parse(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", pattern, err, want)
		}
	}
}
