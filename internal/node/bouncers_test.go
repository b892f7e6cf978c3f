package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// If one of several names is not the name of a rule, the error says which one.
func TestBouncerRulesThatAreNotThere(t *testing.T) {
	rules, err := windows.Parse("example", []byte(someRules))
	testkit.Must(t, err)
	c := settings.New()
	c.Checks.Bouncers = "api, login"
	_, err = newNode(Config{Settings: c}, windows.Fixed(rules), slog.New(slog.DiscardHandler)).openBouncers()
	if err == nil || !strings.Contains(err.Error(), `is "api, login": no rule is named "login"`) {
		t.Error(err)
	}
}
