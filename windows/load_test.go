package windows

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// busted: testdata/busted_<what>.yml → line:column and what the message must
// name. The whole messages are in busted_<what>.txt.
var busted = map[string][2]string{
	"penalty_text":               {"5:14", `penalty`},
	"penalty_short":              {"5:15", `10ms: want 1s to 31d`},
	"penalty_falling":            {"5:20", `no step shorter`},
	"penalty_unit":               {"5:15", `"1x"`},
	"penalty_many":               {"5:14", `11 steps`},
	"penalty_and_lease":          {"6:14", `one of both`},
	"forget_alone":               {"5:13", `only with a penalty`},
	"forget_short":               {"6:13", `forget 1ms`},
	"after_blocks":               {"15:14", `"1y"`},
	"alerts_fraction":            {"4:19", `"95.5%"`},
	"alerts_hundred":             {"4:19", `100%`},
	"alerts_number":              {"4:19", `alerts[1] 95:`},
	"alerts_text":                {"4:13", `"80%"`},
	"alerts_twice":               {"4:24", `80%: want each percentage once; first in line 4`},
	"alerts_zero":                {"4:14", `0%`},
	"algorithm":                  {"4:16", `"leaky-bucket": want sliding-log`},
	"algorithm_removed":          {"4:16", "use sliding-log"},
	"alias":                      {"8:14", `*span`},
	"buckets_elsewhere":          {"5:14", `only sliding-buckets has buckets, not fixed-window`},
	"buckets_high":               {"5:14", `buckets 1001: want a whole number from 1 to 1000`},
	"buckets_zero":               {"5:14", `buckets 0: want a whole number from 1 to 1000`},
	"columns":                    {"2:75", `limit 0`},
	"crlf":                       {"10:25", `"1y"`},
	"duplicate_key":              {"4:5", `"name" is given twice; first in line 2`},
	"empty":                      {"1:1", `empty`},
	"hold_fraction":              {"4:11", `1µs`},
	"hold_long":                  {"4:11", `24h0m1s: want 0s to 1d`},
	"hold_negative":              {"4:11", `-1s`},
	"hold_number":                {"4:11", `5: want numbers with units`},
	"limit_fraction":             {"5:17", `1.5`},
	"limit_high":                 {"5:17", `1000000000001`},
	"limit_huge":                 {"5:17", `99999999999999999999`},
	"limit_missing":              {"5:9", `limit is missing`},
	"limit_negative":             {"5:17", `-5`},
	"limit_octal":                {"5:17", `0100`},
	"limit_text":                 {"5:17", `"many"`},
	"limit_zero":                 {"5:17", `limit 0:`},
	"match_backslash":            {"3:12", `user:\\\: want`},
	"match_control":              {"3:12", `"user:\n*"`},
	"match_empty":                {"3:12", `match ""`},
	"match_latin1":               {"3:16", `UTF-8`},
	"match_missing_shadow":       {"3:13", `without match`},
	"name_override":              {"2:11", `name "override"`},
	"name_form":                  {"2:11", `"Api_1"`},
	"name_list":                  {"2:11", `a list`},
	"name_long":                  {"2:11", `"aaaa`},
	"name_missing":               {"2:5", `name is missing`},
	"name_twice":                 {"9:11", `"api": want each name once; first in line 2`},
	"on_deny":                    {"4:14", `"count": want skip or charge`},
	"on_error":                   {"4:15", `"fail": want allow, deny or local`},
	"only_comments":              {"1:1", `empty`},
	"per_fraction":               {"5:27", `10.5ms`},
	"per_long":                   {"5:27", `366d`},
	"in_flight_and_per":          {"5:9", `want one of them`},
	"in_flight_long":             {"5:33", `in_flight 2d`},
	"in_flight_span":             {"6:32", `each span once`},
	"on_expire":                  {"5:16", `on_expire "keep"`},
	"lease_in_flight":            {"6:12", `lease 100ms beside in_flight`},
	"lease_long":                 {"5:12", `lease 11s: want 10ms to 10s`},
	"lease_number":               {"5:12", `lease 100: want numbers with units`},
	"lease_short":                {"5:12", `lease 9ms: want 10ms to 10s`},
	"lease_window":               {"7:12", `lease 2s: want no more than the shortest window, 1s; first in line 6`},
	"lease_zero":                 {"5:12", `lease 0s: want`},
	"per_missing":                {"5:9", `per is missing`},
	"per_negative":               {"5:27", `-1m`},
	"per_number":                 {"5:27", `60: want numbers with units (ns, us, ms, s, m, h, d)`},
	"per_overflow":               {"5:27", `"999999999d"`},
	"per_short":                  {"5:27", `9ms: want 10ms to 366d`},
	"per_twice":                  {"6:27", `1m: want each span once in a rule; first in line 5`},
	"per_unit":                   {"5:27", `"1w"`},
	"per_zero":                   {"5:27", `0s`},
	"rule_null":                  {"2:4", `rules[0]`},
	"rule_text":                  {"2:5", `rules[0] "api"`},
	"rules_empty":                {"1:8", `at least one`},
	"rules_mapping":              {"2:3", `a mapping: want a list`},
	"rules_missing":              {"1:1", `rules is missing`},
	"second_document":            {"7:1", `second document`},
	"shadow":                     {"4:13", `"yes": want true or false`},
	"syntax_flow":                {"5:9", `'}'`},
	"syntax_quote":               {"3:12", `quoted scalar`},
	"syntax_tab":                 {"3:1", `a tab character`},
	"top_empty_mapping":          {"1:1", `rules is missing`},
	"top_list":                   {"1:1", `a list`},
	"zone_unknown":               {"5:40", `"Europe/Berln": want the name of a time zone`},
	"zone_local":                 {"5:40", `"Local"`},
	"zone_without_calendar":      {"5:37", `zone "UTC": want no zone`},
	"zone_in_flight":             {"5:43", `zone`},
	"zone_list":                  {"5:40", `zone`},
	"starts_without_calendar":    {"5:39", `starts`},
	"starts_day":                 {"5:40", `midnight`},
	"starts_week":                {"5:41", `a day of the week`},
	"starts_month":               {"5:42", `32: want a day of the month from 1 to 31`},
	"starts_month_zero":          {"5:42", `015`},
	"starts_year":                {"5:41", `"02-30"`},
	"starts_empty":               {"5:42", `starts`},
	"per_calendar_and_span":      {"6:27", `month and 30d can last equally long`},
	"per_calendar_twice":         {"6:27", `per day`},
	"distinct_algorithm":         {"5:57", `not allowed beside distinct`},
	"distinct_beside_in_flight":  {"6:40", `beside in_flight`},
	"distinct_calendar":          {"5:40", `a sliding window`},
	"distinct_field":             {"5:40", `"user name"`},
	"distinct_in_flight":         {"5:45", `a sliding window`},
	"distinct_lease":             {"6:12", `lease beside distinct`},
	"distinct_limit":             {"5:17", `100001: want at most 100000`},
	"distinct_normalize":         {"5:65", `"upper": want lower or trim`},
	"distinct_normalize_alone":   {"5:41", `only with distinct`},
	"distinct_normalize_two":     {"6:39", `the same in all windows of "user"; first in line 5`},
	"distinct_taken":             {"5:40", `"count"`},
	"publish_values":             {"5:62", `101: want a whole number from 1 to 100`},
	"publish_values_zero":        {"5:62", `0: want a whole number from 1 to 100`},
	"distinct_empty":             {"5:40", `the name of a field`},
	"publish_values_alone":       {"5:46", `only with distinct`},
	"publish_values_shadow":      {"5:62", `not allowed in a shadow rule`},
	"window_algorithm":           {"5:42", `"leaky": want sliding-log`},
	"window_algorithm_calendar":  {"5:45", `in one integer`},
	"window_algorithm_in_flight": {"5:48", `beside in_flight`},
	"buckets_no_window":          {"6:14", `only sliding-buckets has buckets, not fixed-window`},
	"unknown_field": {"3:5",
		`"mach": want name, match, algorithm, windows, buckets, alerts, `},
	"unknown_top":          {"1:1", `"rulez": want rules`},
	"unknown_window_field": {"5:22", `"every": want limit, per`},
	"unquoted_lone_star":   {"3:12", `needs quotes`},
	"unquoted_star":        {"3:12", `needs quotes: "*:admin"`},
	"window_list":          {"5:9", `windows[0] is a list`},
	"windows_empty":        {"4:14", `1 to 8`},
	"windows_missing":      {"2:5", `windows is missing`},
	"windows_nine":         {"13:9", `9 windows: want at most 8`},
	"windows_number":       {"4:14", `windows 100`},
}

func TestBustedFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/busted_*.yml")
	testkit.Must(t, err)
	seen := map[string]bool{}
	for _, file := range files {
		what := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "busted_"), ".yml")
		seen[what] = true
		t.Run(what, func(t *testing.T) {
			rules, err := Load(file)
			if err == nil || rules != nil {
				t.Fatalf("loaded %v, error %v", rules, err)
			}
			got := err.Error() + "\n"
			testkit.Golden(t, strings.TrimSuffix(file, "yml")+"txt",
				strings.Replace(got, strings.Join(Algorithms, ", "), "<Algorithms>", 1))
			first, _, _ := strings.Cut(got, "\n")
			if b := busted[what]; b[1] == "" || !strings.HasPrefix(first, file+":"+b[0]+": ") ||
				!strings.Contains(first, b[1]) {
				t.Errorf("%s\nwant it at %s, naming %s", first, b[0], b[1])
			}
		})
	}
	for _, what := range slices.Sorted(maps.Keys(busted)) {
		if !seen[what] {
			t.Errorf("no file testdata/busted_%s.yml", what)
		}
	}
}

func TestWorkingFiles(t *testing.T) {
	want := map[string][]*Rule{
		"minimal": {{
			Name: "api", Match: "user:*", Algorithm: "sliding-log", Hold: time.Second, OnDeny: OnDenySkip,
			OnError:  OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows:  []Window{{Limit: 100, Per: time.Minute}},
		}},
		"tier": {{
			Name: "gold", Algorithm: "sliding-log", Hold: time.Second, OnDeny: OnDenySkip, OnError: OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows:  []Window{{Limit: 500, Per: time.Minute}},
		}, {
			Name: "api", Match: "user:*", Algorithm: "sliding-log", Hold: time.Second,
			OnDeny: OnDenySkip, OnError: OnErrorAllow, OnExpire: OnExpireCharge,
			Windows: []Window{{Limit: 100, Per: time.Minute}},
		}},
		"merged": {{
			Name: "api", Match: "user:*", Algorithm: "sliding-log", Hold: 5 * time.Second, OnDeny: OnDenySkip,
			OnError:  OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows:  []Window{{Limit: 100, Per: time.Minute}}, Alerts: []int{80},
		}, {
			Name: "search", Match: "search:*", Algorithm: "sliding-log", Hold: 2 * time.Second, OnDeny: OnDenySkip,
			OnError:  OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows:  []Window{{Limit: 100, Per: time.Minute}}, Alerts: []int{80},
		}},
		"full": {{
			Name: "api", Match: "user:*", Algorithm: "sliding-log", Hold: 2 * time.Second, OnDeny: OnDenyCharge,
			OnError:  OnErrorLocal,
			OnExpire: OnExpireCharge,
			Shadow:   true,
			Windows:  []Window{{Limit: 100, Per: time.Minute}, {Limit: 2000, Per: time.Hour}}, Alerts: []int{80, 95},
		}},
		"windows": {{
			Name: "burst-and-day", Match: `tenant:?:*\*`, Algorithm: "sliding-log", OnDeny: OnDenySkip,
			OnError:  OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows: []Window{
				{Limit: 10, Per: 10 * time.Millisecond}, {Limit: 1000, Per: 90 * time.Minute}, {Limit: 20000, Per: day},
			},
		}, {
			Name: "404", Match: "404", Algorithm: "sliding-log", Hold: time.Second, OnDeny: OnDenySkip,
			OnError:  OnErrorDeny,
			OnExpire: OnExpireCharge,
			Windows: []Window{
				{Limit: 10, Per: 10 * time.Millisecond}, {Limit: 1000, Per: 90 * time.Minute}, {Limit: 20000, Per: day},
			},
		}},
		"algorithms": func() (list []*Rule) {
			for _, r := range []Rule{
				{Name: "log", Match: "log:*", Algorithm: "sliding-log"},
				{Name: "zset", Match: "zset:*", Algorithm: "sliding-log-zset"},
				{Name: "counter", Match: "counter:*", Algorithm: "sliding-counter"},
				{Name: "default-buckets", Match: "default:*", Algorithm: "sliding-buckets", Buckets: 60},
				{Name: "few-buckets", Match: "few:*", Algorithm: "sliding-buckets", Buckets: 10},
				{Name: "fixed", Match: "fixed:*", Algorithm: "fixed-window"},
			} {
				r.OnExpire = OnExpireCharge
				r.Hold, r.OnDeny, r.OnError = time.Second, OnDenySkip, OnErrorAllow
				r.Windows = []Window{{Limit: 1, Per: time.Second}}
				list = append(list, &r)
			}
			return list
		}(),
		"days": {{
			Name: "month", Match: "*", Algorithm: "sliding-log", Hold: day, OnDeny: OnDenySkip,
			OnError:  OnErrorAllow,
			OnExpire: OnExpireCharge,
			Windows: []Window{
				{Limit: MaxLimit, Per: 31 * day}, {Limit: 5, Per: 36 * time.Hour}, {Limit: 1, Per: 12 * time.Hour},
			},
		}},
	}
	files, err := filepath.Glob("testdata/working_*.yml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files for %d cases, %v", len(files), len(want), err)
	}
	for what, list := range want {
		t.Run(what, func(t *testing.T) {
			rules, err := Load("testdata/working_" + what + ".yml")
			testkit.Must(t, err)
			if d := cmp.Diff(list, rules.List()); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			for _, r := range list {
				if got := rules.Named(r.Name); got == nil || got.Name != r.Name {
					t.Errorf("Named(%q) = %v", r.Name, got)
				}
			}
			if r := rules.Named("none"); r != nil {
				t.Errorf("Named(none) = %v", r)
			}
		})
	}
}

func TestParseTakesAByteOrderMark(t *testing.T) {
	data, err := os.ReadFile("testdata/working_minimal.yml")
	testkit.Must(t, err)
	if _, err := Parse("bom.yml", append([]byte("\ufeff"), data...)); err != nil {
		t.Error(err)
	}
}

func TestLoadNamesTheMissingFile(t *testing.T) {
	_, err := Load("testdata/none.yml")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "testdata/none.yml") {
		t.Error(err)
	}
}

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0s": 0, "31d": 31 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "1h30m": 90 * time.Minute,
		"-1d12h": -36 * time.Hour, "106751d": 106751 * day, "250ms": 250 * time.Millisecond, "-5m": -5 * time.Minute,
	} {
		if got, err := parseDuration(s); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "-", "d", "-d", "5", "1d5", "1h1d", "1d1d", "1d-1h", "--1h", "+-1h", "-+1d", "1 d", "1d ", "1D",
		"106752d", "106751d24h", "1e9d",
	} {
		if got, err := parseDuration(s); err == nil {
			t.Errorf("%q: %v, want an error", s, got)
		}
	}
}

func TestInDaysIsReadBack(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Millisecond: "10ms", time.Minute: "1m", 90 * time.Minute: "1h30m", 31 * day: "31d",
		25 * time.Hour:          "25h",
		time.Hour + time.Second: "1h0m1s", -time.Minute: "-1m", 10 * time.Minute: "10m", 20 * time.Second: "20s",
	} {
		got := inDays(d)
		if back, err := parseDuration(got); got != want || err != nil || back != d {
			t.Errorf("%v: %q, read back as %v, %v; want %q", d, got, back, err, want)
		}
	}
}

func TestNewRulesNamesTheRule(t *testing.T) {
	good := func() *Rule {
		return &Rule{Name: "api", Match: "*", Windows: []Window{{Limit: 1, Per: time.Second}}, Alerts: []int{95, 80}}
	}
	given := good()
	rules, err := NewRules([]*Rule{given})
	testkit.Must(t, err)
	got := rules.List()[0]
	if got.Algorithm != DefaultAlgorithm || got.OnError != OnErrorAllow || got.Hold != 0 ||
		!slices.Equal(got.Alerts, []int{80, 95}) {
		t.Errorf("got %+v", got)
	}
	if d := cmp.Diff(good(), given); d != "" {
		t.Errorf("what was given changed\n%s", d)
	}
	for want, list := range map[string][]*Rule{
		"rules is an empty list":           nil,
		"rules[1]: is nil":                 {good(), nil},
		`rules[0]: name ""`:                {{Match: "*"}},
		`rule "api": name "api": want`:     {good(), good()},
		`rule "x": windows is an empty`:    {{Name: "x", Match: "*"}},
		`rule "x": limit -1: want a whole`: {{Name: "x", Match: "*", Windows: []Window{{Limit: -1, Per: time.Second}}}},
	} {
		if rules, err := NewRules(list); rules != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
