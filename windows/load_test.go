package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Each testdata/busted_<what>.yml is refused with file, line and column, and what is wrong. busted_<what>.txt has the
// error.
func TestBustedFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/busted_*.yml")
	if err != nil || len(files) < 120 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		rules, err := Load(file)
		if err == nil || rules != nil {
			t.Errorf("%s: loaded %v, error %v", file, rules, err)
			continue
		}
		testkit.Golden(t, strings.TrimSuffix(file, "yml")+"txt",
			strings.Replace(err.Error()+"\n", strings.Join(Algorithms, ", "), "<Algorithms>", 1))
	}
}

// Each testdata/working_<what>.yml is loaded. working_<what>.txt has its rules with all defaults.
func TestWorkingFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/working_*.yml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		rules, err := Load(file)
		testkit.Must(t, err)
		testkit.Golden(t, strings.TrimSuffix(file, "yml")+"txt", string(asYAML(rules.List())))
		for _, r := range rules.List() {
			if rules.Named(r.Name) != r || rules.Named("none") != nil {
				t.Errorf("%s: Named(%q) = %v", file, r.Name, rules.Named(r.Name))
			}
		}
	}
}

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0s": 0, "31d": 31 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "1h30m": 90 * time.Minute,
		"-1d12h": -36 * time.Hour, "106751d": 106751 * day, "250ms": 250 * time.Millisecond, "-5m": -5 * time.Minute,
	} {
		if got, err := ParseDuration(s); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "-", "d", "-d", "5", "1d5", "1h1d", "1d1d", "1d-1h", "--1h", "+-1h", "-+1d", "1 d", "1d ", "1D",
		"106752d", "106751d24h", "1e9d",
	} {
		if got, err := ParseDuration(s); err == nil {
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
		if back, err := ParseDuration(got); got != want || err != nil || back != d {
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
	if d := gocmp.Diff(good(), given); d != "" {
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

// limited is a file with a limit.
func limited(limit any) string {
	return fmt.Sprintf("rules:\n  - {name: api, match: '*', windows: [{limit: %v, per: 1m}]}\n", limit)
}

func (s *Source) limit() int64 { return s.Rules().List()[0].Windows[0].Limit }

func TestASourceFollowsItsFile(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	path := testkit.WriteFile(t, "rules.yml", limited(1))
	s, err := NewSource(path, nil)
	testkit.Must(t, err)
	heard := make(chan error, 10)
	s.OnReload(func(err error) { heard <- err })
	stop := testkit.Background(t, s.Run)
	testkit.Must(t, os.WriteFile(path, []byte(limited("x")), 0o600))
	if err := <-heard; err == nil || !strings.HasPrefix(err.Error(), path+`:2:47: limit "x"`) || s.limit() != 1 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
	stop()
	testkit.Must(t, os.WriteFile(path, []byte(limited(2)), 0o600))
	if err := s.Reload(); err != nil || s.limit() != 2 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
}

func TestAFileThatIsMissing(t *testing.T) {
	const path = "testdata/none.yml"
	s, err := NewSource(path, nil)
	rules, loadErr := Load(path)
	if s != nil || !errors.Is(err, fs.ErrNotExist) || rules != nil || !errors.Is(loadErr, fs.ErrNotExist) ||
		!strings.Contains(loadErr.Error(), path) {
		t.Errorf("%v, %v; %v, %v", s, err, rules, loadErr)
	}
}
