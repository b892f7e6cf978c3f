package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A wrong number of arguments says what is expected, and a mistyped command which one was meant.
func TestWrongArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"keys", "blok", "user:1"}, `unknown command "blok" of streamcounter keys; did you mean block?`},
		{[]string{"rules", "dif", "a", "b"}, `unknown command "dif" of streamcounter rules; did you mean diff?`},
		{[]string{"keys", "history"}, "no argument, expected streamcounter keys history KEY"},
		{[]string{"rules", "check", "a", "b"}, "2 arguments (a b), expected streamcounter rules check [FILE]"},
		{[]string{"check"}, "no argument, expected streamcounter check KEY [COST]"},
		{[]string{"serve", "--open", "true"}, "1 argument (true), expected streamcounter serve; " +
			"a flag that is true or false takes no word: --open, or --open=false"},
		{[]string{"work", "redis://me:s3cr3t@redis:6379"}, "1 argument (…@redis:6379), expected streamcounter work"},
	} {
		root := newRoot()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		if err := root.Execute(); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}
}

// Of several names the error says which one no rule has.
func TestBouncerRulesThatAreNotThere(t *testing.T) {
	rules, err := windows.Parse("example", exampleRules)
	testkit.Must(t, err)
	c := newConfig()
	c.Checks.Bouncers = "api, login"
	_, err = newNode("serve", c, windows.Fixed(rules), slog.New(slog.DiscardHandler)).openBouncers()
	if err == nil || !strings.Contains(err.Error(), `is "api, login": no rule is named "login"`) {
		t.Error(err)
	}
}
