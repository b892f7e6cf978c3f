package windows

import (
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestCombineKeepsTheRulesAndTheirOrder(t *testing.T) {
	make := func(name, match string) *Rules {
		r, err := NewRules([]*Rule{{Name: name, Match: match, Windows: []Window{{Limit: 1, Per: time.Second}}}})
		testkit.Must(t, err)
		return r
	}
	first, second := make("a", "x:*"), make("b", "*")
	both, err := Combine(first, second)
	testkit.Must(t, err)
	if both.Match("x:1").Live != first.List()[0] || both.Match("y").Live != second.List()[0] ||
		both.Named("b") != second.List()[0] {
		t.Error("not the rules that were given")
	}
	if r, err := Combine(second, first); err != nil || r.Match("x:1").Live != second.List()[0] {
		t.Error("not in the order given", err)
	}
	if _, err := Combine(first, second, make("a", "z")); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Error(err)
	}
}
