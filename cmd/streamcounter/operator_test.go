package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The commands of an operator, and their output: which limits are replaced, which keys are covered, what was probably
// a mistake. They run in this order, against one server.
func TestWhatCommandsOfOperatorsSay(t *testing.T) {
	d := startDev(t, "--check-timeout", "5s", "--rules", testkit.WriteFile(t, "rules.yml", `rules:
  - {name: api, match: "user:*", windows: [{limit: 100, per: 1m}, {limit: 1000, per: month}], penalty: [1h, 2h]}
  - {name: web, match: "ip:*", windows: [{limit: 10, per: 1h}]}
  - {name: login, match: "login:*", windows: [{limit: 2, per: 1h, distinct: user}]}
  - {name: daily, match: "daily:*", windows: [{limit: 5, per: 24h}, {limit: 50, per: 366d}]}
  - {name: probe, match: "probe:*", windows: [{limit: 5, per: 1h}], shadow: true}
`))
	at := fmt.Sprintf("127.0.0.1:%d", d.http)
	for _, c := range []struct {
		line string
		code int
		says []string
	}{
		{"check user:1 10", 0, nil},
		{"keys limit user:1 200/1m", 0, []string{"user:1: limit 200/1m\n", "replaces 100 per 1m of rule api",
			"keeps 1000 per month of rule api"}},
		{"keys show user:1", 0, []string{"10 of 200 used per 1m,", "10 of 1000 used per month"}},
		{"keys limit user:1 200/1m --all", 0, []string{"limit 200/1m alone", "replaces 100 per 1m, 1000 per month"}},
		{"keys unblock user:1", 1, []string{"user:1 is not blocked: limit 200/1m alone; `keys clear` removes that"}},
		{"keys clear user:1", 0, nil},
		{"keys unblock user:1", 1, []string{"user:1 is not blocked"}},
		{"keys block user:1 --for 1h", 0, []string{"blocked until"}},
		{"keys unblock user:1", 0, []string{"user:1 is no longer blocked"}},
		{"check user:1", 0, nil},

		{"check ip:203.0.113.9 10", 0, nil},
		{"check ip:198.51.100.1", 0, nil},
		{"keys block ip:203.0.113.0/24", 1, []string{"ip:203.0.113.0/24 covers 1 known key, 1 of them throttled now",
			"--yes"}},
		{"check ip:203.0.113.8", 0, nil},
		{"keys block ip:203.0.113.0/24 --yes", 0, []string{"covers 2 known keys, 1 of them throttled now", "blocked"}},
		{"check ip:203.0.113.8", 1, []string{"blocked by an operator"}},
		{"check ip:198.51.100.1", 0, nil},
		{"keys unblock ip:203.0.113.8", 1, []string{"no block of its own: ip:203.0.113.0/24 blocks it"}},
		{"keys overrides", 0, []string{"ip:203.0.113.0/24  blocked"}},
		{"keys unblock ip:203.0.113.0/24", 0, []string{"no longer blocked"}},
		{"keys block 10.0.0.0/8", 1, []string{"10.0.0.0/8 covers 0 known keys",
			"warning: no known key fits 10.0.0.0/8, which is for keys such as 10.0.0.0\n"}},
		{"keys block ip:192.0.2.0/24", 1, []string{"for keys such as ip:192.0.2.0\n"}},
		{"keys block nobody:*", 1, []string{"warning: no known key fits nobody:*\n"}},
		{"keys block *", 1, []string{"* covers 4 known keys, 1 of them throttled now", "nothing is set"}},
		{"keys block ip:203.0.113.9/24 --yes", 2, []string{`expected "ip:203.0.113.0/24"`}},
		{"keys block nobody:1", 0, []string{"warning: no rule matches the key", `"user:*" (api), "ip:*" (web)`}},
		{"keys block user:1 --for 0s", 2, []string{`for: "0s"`}},
		{"keys tier user:1 nope", 2, []string{`rule "nope"`}},
		{"keys top --limit 51", 2, []string{"from 1 to 50"}},
		{"keys top nope", 2, []string{`rule="nope"`}},
		{"keys history user:1 --before x", 2, []string{`before="x"`}},
		{"keys history user:*", 0, []string{`user:* is not one key. The history of the key with this name: ` +
			`keys history 'user:\*'` + "\n"}},
		{"keys history ip:203.0.113.0/24", 0, []string{`keys history 'ip:203.0.113.0\/24'`}},
		{`keys history user:\*`, 0, []string{"no history\n"}},
		{"keys limit nobody:1 5/1m", 2, []string{"no rule matches the key", `"user:*" (api)`}},

		{"check login:1 --value user=alice", 0, []string{`1 of 2 values of "user" per 1h, 1 remaining`}},
		{"keys show login:1 --values", 0, []string{`1 of 2 values of "user" per 1h`, `values of "user", last seen:`,
			"  alice\n"}},
		{"check login:1 --value user=bob", 0, nil},
		{"keys throttled", 0, []string{`rule login: 2 of 2 values of "user" per 1h`}},
		{"check daily:1", 0, []string{"1 of 5 used per 1d,", "1 of 50 used per 366d,"}},
		{"check probe:1 3", 0, nil},
		{"keys show probe:1", 0, []string{"rule none", "rule probe (shadow", "3 of 5 used per 1h,"}},
		{"check user:2 100", 0, []string{"penalty, step 1 of 2, until"}},
		{"keys show user:2", 0, []string{"0 remaining", "penalty, step 1 of 2, until"}},
		{"keys throttled", 0, []string{"rule api: 100 of 100 per 1m, penalty 1 of 2"}},
	} {
		if c.line == "keys block *" { // the sweeper releases the keys that the network's block denied
			streamtest.Eventually(t, 10*time.Second, "one key is throttled", func() (bool, string) {
				_, out, errs := runProgram(t, "", "keys", "throttled", "--http", at)
				return strings.Count(out, "\n") > 0 && !strings.Contains(out, "203.0.113.8"), out + errs
			})
		}
		expect(t, c.line+" --http "+at, c.code, c.says...)
	}
}
