package counters_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Checks of one key that come at the same time, some under the rules before a reload and some under the rules
// after it, may be answered in one run. Whatever counters the two rules have in common, no unit is lost.
func TestCallsUnderTwoRulesOfOneRun(t *testing.T) {
	forms := []string{
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}]",
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}, {limit: 100, per: day}]",
		"windows: [{limit: 10, per: 1m}, {limit: 1000, per: 1h, algorithm: sliding-counter}]",
		"algorithm: sliding-counter\n    windows: [{limit: 10, per: 1m}]",
		"windows: [{limit: 10, per: 1m, algorithm: sliding-counter}, {limit: 100, per: month}]",
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}]\n    penalty: [1s]",
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for i, before := range forms {
			for j, after := range forms {
				key := fmt.Sprintf("k:%d:%d", i, j)
				ask := func(form string) []counters.Request {
					s.rules = parsed(t, "rules:\n  - name: r\n    match: \"*\"\n    "+form)
					return tale{t, s}.requests(3, key)
				}
				got, err := s.serve.CheckMany(t.Context(), [][]counters.Request{ask(before), ask(after), ask(before),
					ask(after)})
				testkit.Must(t, err)
				used := int64(0)
				for _, v := range got {
					if v.Allowed {
						used += 3
					}
				}
				shared := i == j || (i < 3 || i == 5) && (j < 3 || j == 5) || (i == 3 || i == 4) && (j == 3 || j == 4)
				st, err := s.Peek(t.Context(), s.rules.Match(key), key)
				testkit.Must(t, err)
				_, err = s.serve.CheckMany(t.Context(), [][]counters.Request{append(ask(before), ask(after)...)})
				if err == nil || !strings.Contains(err.Error(), "in one check") {
					t.Errorf("a key under two rules in one call: %v", err)
				}
				if n := st.Windows[0].Used; shared && (used != 9 || n != 9) {
					t.Errorf("%s\nand %s:\n%d units were admitted, %d are counted, of 10", before, after, used, n)
				}
			}
		}
	})
}

// If Redis has lost everything since the start, keys may have been counted under the rules before the reload.
func TestAReloadAfterRedisWasEmptied(t *testing.T) {
	per := func(n int64) *windows.Rules {
		return rulesOf(t, &windows.Rule{Name: "r", Match: "*", Windows: []windows.Window{{Limit: 1, Per: ms(n)}}})
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		testkit.Must(t, s.store.RecordRules(t.Context(), per(1000)))
		testkit.Must(t, s.redis.Del(t.Context(), s.keys.Meta()).Err())
		testkit.Must(t, s.store.RecordRules(t.Context(), per(2000)))
		if rules := s.redis.HGet(t.Context(), s.keys.Meta(), "rules").Val(); strings.HasSuffix(rules, "@0") {
			t.Errorf("sc:meta has the rules %s, want the time of the reload", rules)
		}
	})
}
