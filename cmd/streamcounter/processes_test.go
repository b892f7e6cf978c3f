package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Two `work` and a `serve`, one with another rules file: each says so in its metrics,
// doctor names all, and after a reload they agree.
func TestProcessesWithDifferentRulesSeeEachOther(t *testing.T) {
	redis, nats := streamtest.OwnRedis(t, "--appendonly", "yes").URL(), streamtest.OwnNATS(t).URL()
	first := testkit.WriteFile(t, "rules.yml", devRulesText)
	second := testkit.WriteFile(t, "rules.yml", strings.Replace(devRulesText, "limit: 100", "limit: 200", 1))
	at := map[string]string{} // process → where it listens
	prints := map[string]string{}
	for name, args := range map[string][]string{"a": {"work", "--rules", first}, "b": {"work", "--rules", second},
		"c": {"serve", "--rules", first}} {
		args = append(args, "--redis", redis, "--http", "127.0.0.1:0")
		if args[0] == "work" {
			args = append(args, "--nats", nats)
		}
		p := startProgram(t, args...)
		p.until(`"msg":"ready"`)
		at[name] = readyAt.FindStringSubmatch(p.text())[1]
		m := regexp.MustCompile(`"process":"([^"]+)".*"fingerprint":"([0-9a-f]+)"`).FindStringSubmatch(p.text())
		if m == nil {
			t.Fatalf("`ready` does not say which process with which rules:\n%s", p.text())
		}
		prints[name] = m[2] + ": " + args[0] + " " + m[1]
	}
	disagree := func(name string) string { return metric(t, "http://"+at[name], "streamcounter_rules_disagree") }
	all := func(a, b, c string) {
		t.Helper()
		streamtest.Eventually(t, 30*time.Second, "each sees which others have other rules", func() (bool, string) {
			got := fmt.Sprint(disagree("a"), disagree("b"), disagree("c"))
			return got == fmt.Sprint(a, b, c), got
		})
	}
	all("1", "2", "1")
	_, r, _ := runDoctor(t, "--redis", redis, "--nats", "")
	for _, print := range []string{prints["a"], prints["b"], prints["c"]} {
		rules, name, _ := strings.Cut(print, ": ")
		wantFinding(t, r, "state.rules", doctor.Note, rules+": ")
		wantFinding(t, r, "state.rules", doctor.Note, name)
	}
	rewrite(t, second, devRulesText)
	all("0", "0", "0")
	_, r, _ = runDoctor(t, "--redis", redis, "--nats", "")
	wantFinding(t, r, "state.rules", doctor.OK, "the same")
}
