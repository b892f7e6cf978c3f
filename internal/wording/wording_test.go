package wording_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

// Every form of a rule in words: compare testdata/rules.txt with testdata/rules.yml.
func TestRuleInWords(t *testing.T) {
	rules, err := windows.Load(filepath.Join("testdata", "rules.yml"))
	testkit.Must(t, err)
	var b strings.Builder
	for _, r := range rules.List() {
		fmt.Fprintln(&b, wording.Rule(r))
	}
	testkit.Golden(t, filepath.Join("testdata", "rules.txt"), b.String())
}

const (
	a = `{name: a, match: "a:*", windows: [{limit: 1000, per: 1m}]}`
	b = `{name: b, match: "b:*", windows: [{limit: 20, per: 1h}]}`
	c = `{name: c, match: "*", windows: [{limit: 30, per: 1d}]}`
	s = `{name: s, match: "a*", windows: [{limit: 7, per: 1s}], shadow: true}`
	g = `{name: gold, windows: [{limit: 5000, per: 1h}]}`
)

// field returns a rule with these windows and other fields.
func field(windows, more string) string {
	return `{name: r, match: "*", windows: [` + windows + `]` + more + `}`
}

// testdata/diff.txt has the differences between two files, and their effects.
func TestDiffInWords(t *testing.T) {
	const minute = "{limit: 1000, per: 1m}"
	var b0 strings.Builder
	for _, test := range []struct {
		name        string
		before, now string
	}{
		{"the same, written otherwise", a, strings.Replace(a, "1m", "60s", 1)},
		{"added above others", a + "," + c, a + "," + b + "," + c},
		{"added at the end", a, a + "," + c},
		{"a shadow and a tier are added", a, s + "," + g + "," + a},
		{"removed", a + "," + s + "," + g + "," + b, b},
		{"two in another order", a + "," + c, c + "," + a},
		{"the first becomes the last", c + "," + a + "," + b, a + "," + b + "," + c},
		{"the last becomes the first", a + "," + b + "," + c, c + "," + a + "," + b},
		{"moved past a removed one", a + "," + b + "," + c, c + "," + a},
		{"a shadow moves", s + "," + a, a + "," + s},
		{"renamed", a + "," + b, strings.Replace(a, "name: a", "name: api", 1) + "," + b},
		{"renamed, with another field", a, strings.Replace(a, "name: a", "name: api, on_error: deny", 1)},
		{"another rule altogether", a, b},
		{"limit raised", field(minute, ""), field("{limit: 2000, per: 1m}", "")},
		{"a longer window is added", field(minute, ""), field(minute+", {limit: 90, per: 1d}", "")},
		{"a shorter window is added", field(minute, ""), field(minute+", {limit: 90, per: 10s}", "")},
		{"a window is added to an estimate", field(minute, ", algorithm: sliding-counter"),
			field(minute+", {limit: 90, per: 10s}", ", algorithm: sliding-counter")},
		{"a window is removed", field(minute+", {limit: 90, per: 1d}", ""), field(minute, "")},
		{"windows in another order", field(minute+", {limit: 90, per: 1d}", ""),
			field("{limit: 90, per: 1d}, "+minute, "")},
		{"at most so many at once", field(minute, ""), field(minute+", {limit: 3, in_flight: 30s}", "")},
		{"one more at once", field("{limit: 3, in_flight: 30s}", ""), field("{limit: 4, in_flight: 30s}", "")},
		{"no longer at once", field(minute+", {limit: 3, in_flight: 30s}", ""), field(minute, "")},
		{"between exact algorithms", field(minute, ""), field(minute, ", algorithm: sliding-log-zset")},
		{"one window to another exact algorithm", field(minute+", {limit: 90, per: 1d}", ""),
			field(minute+", {limit: 90, per: 1d, algorithm: sliding-log-zset}", "")},
		{"a window by another exact algorithm is added", field(minute, ""),
			field(minute+", {limit: 90, per: 10s, algorithm: sliding-log-zset}", "")},
		{"a window of the calendar is added", field(minute, ""), field(minute+", {limit: 90, per: month}", "")},
		{"to an estimate", field(minute, ""), field(minute, ", algorithm: sliding-counter")},
		{"to an estimate with another window", field(minute, ""),
			field(minute+", {limit: 90, per: 10s}", ", algorithm: fixed-window")},
		{"buckets", field(minute, ", algorithm: sliding-buckets"),
			field(minute, ", algorithm: sliding-buckets, buckets: 1")},
		{"alerts", field(minute, ", alerts: [80%]"), field(minute, ", alerts: [80%, 95%]")},
		{"no alerts", field(minute, ", alerts: [80%]"), field(minute, "")},
		{"hold", field(minute, ", hold: 0s"), field(minute, ", hold: 5s")},
		{"no hold", field(minute, ""), field(minute, ", hold: 0s")},
		{"a shadow from now on", field(minute, ""), field(minute, ", shadow: true")},
		{"decides from now on", field(minute, ", shadow: true"), field(minute, "")},
		{"on_deny, on_expire, on_error", field(minute, ""),
			field(minute, ", on_deny: charge, on_expire: free, on_error: local")},
		{"lease", field(minute, ""), field(minute, ", lease: 100ms")},
		{"match", field(minute, ""), strings.Replace(field(minute, ""), `"*"`, `"user:*"`, 1)},
		{"a tier from now on", field(minute, ""), strings.Replace(field(minute, ""), `match: "*",`, "", 1)},
		{"no longer a tier", strings.Replace(field(minute, ""), `match: "*",`, "", 1), field(minute, "")},
	} {
		before, now := parse(t, test.before), parse(t, test.now)
		changes := wording.Diff(before, now)
		if same := before.Fingerprint() == now.Fingerprint(); same != (len(changes) == 0) {
			t.Errorf("%s: %d changes, and the same fingerprint: %t", test.name, len(changes), same)
		}
		if back := wording.Diff(now, before); len(back) == 0 && len(changes) > 0 {
			t.Errorf("%s: no changes the other way", test.name)
		}
		fmt.Fprintf(&b0, "# %s\n", test.name)
		for _, change := range changes {
			fmt.Fprintf(&b0, "%s | %s\n", change.Kind, change)
		}
		fmt.Fprintln(&b0)
	}
	testkit.Golden(t, filepath.Join("testdata", "diff.txt"), b0.String())
}

func parse(t *testing.T, list string) *windows.Rules {
	t.Helper()
	rules, err := windows.Parse("rules.yml", []byte("rules: ["+list+"]"))
	testkit.Must(t, err)
	return rules
}
