package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// runDoctor returns the exit code and the report of doctor --json.
func runDoctor(t *testing.T, args ...string) (int, doctor.Report, string) {
	t.Helper()
	code, out, errs := runProgram(t, "", append([]string{"doctor", "--json"}, args...)...)
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("doctor %v: exit code %d, %v\n%s%s", args, code, err, out, errs)
	}
	return code, r, out + errs
}

func wantFinding(t *testing.T, r doctor.Report, check string, severity doctor.Severity, says string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check && f.Severity == severity && strings.Contains(f.Found+f.Why+f.Fix, says) {
			return
		}
	}
	t.Errorf("no %s of %s that says %q in %+v", severity, check, says, r.Findings)
}

// The tests of internal/doctor prove the findings and the exit code. This one proves that the command examines them.
func TestDoctorExitCodes(t *testing.T) {
	clean := streamtest.OwnRedis(t, "--appendonly", "yes").URL()
	natsURL := streamtest.OwnNATS(t).URL()
	closed := testkit.FreeAddr(t)
	bad := testkit.WriteFile(t, "bad.yml", strings.Replace(devRulesText, "limit: 100", "limit: -1", 1))
	for _, x := range []struct {
		args     []string
		code     int
		check    string
		severity doctor.Severity
		says     string
		without  string // a check that is not made; empty: any may be
	}{
		{[]string{"--redis", clean, "--nats", natsURL, "--rules", devRules(t)}, 0, "rules", doctor.OK, "1 rules", ""},
		{[]string{"--redis", clean, "--nats", ""}, 0, "redis.reachable", doctor.OK, clean, "nats.reachable"},
		{[]string{"--redis", clean, "--nats", natsURL, "--rules", bad}, 1, "rules", doctor.Problem, "bad.yml:5:23", ""},
		{[]string{"--redis", clean, "--nats", "nats://" + closed}, 2, "nats.reachable", doctor.Problem, closed,
			"nats.jetstream"},
		{[]string{"--redis", "redis://" + closed, "--nats", natsURL}, 2, "redis.reachable", doctor.Problem, closed,
			"redis.clock"},
	} {
		code, r, text := runDoctor(t, x.args...)
		if code != x.code || x.without != "" && strings.Contains(text, x.without) {
			t.Errorf("doctor %v: exit code %d, want %d, and nothing of %s\n%s", x.args, code, x.code, x.without, text)
		}
		wantFinding(t, r, x.check, x.severity, x.says)
	}
	expect(t, "doctor --redis "+clean+" --nats=", 0, "\nok       redis.maxmemory-policy", " 0 problems\n")
	wrong := strings.Replace(clean, "//", "//serve:wrong@", 1)
	expect(t, "doctor --redis "+wrong+" --nats=", 2, "fix: correct the user")
}

// Servers accept connections and do not answer: doctor still ends within seconds.
func TestDoctorOfSilentServers(t *testing.T) {
	t.Parallel()
	own := streamtest.OwnRedis(t)
	own.Pause()
	began := time.Now()
	code, r, _ := runDoctor(t, "--redis", own.URL(), "--nats", "nats://"+own.Addr()) // silent as a NATS server too
	if took := time.Since(began); code != 2 || took > 10*time.Second {
		t.Errorf("exit code %d after %v, want 2 within seconds", code, took)
	}
	wantFinding(t, r, doctor.RedisReachable, doctor.Problem, own.Addr())
	wantFinding(t, r, doctor.NATSReachable, doctor.Problem, own.Addr())
}

// No output contains a password: each command passes the URLs that it prints through redact, whose tests cover the
// forms of passwords.
func TestSecretsAreNotTold(t *testing.T) {
	closed := testkit.FreeAddr(t)
	serve := "serve --http 127.0.0.1:bad --rules " + devRules(t) + " --redis redis://"
	for _, at := range []string{"user:hidden@" + closed, closed + "?password=hidden", "user:hid/hidden@" + closed} {
		for _, line := range []string{"doctor --nats= --redis redis://" + at, "append --redis redis://" + at,
			serve + at,
			"doctor --redis redis://" + closed + " --nats nats://" + at, "check user:1 --http http://" + at,
			"bench --target http://" + at + " --metrics http://" + at} {
			if text := expect(t, line, failure); strings.Contains(text, "hid") {
				t.Errorf("%s tells:\n%s", line, text)
			}
		}
	}
}

// A start logs each finding once. (package doctor proves which findings, and how long a silent Redis delays a start.)
func TestStartSaysEachThingOnce(t *testing.T) {
	own := streamtest.OwnRedis(t, "--maxmemory-policy", "volatile-lru", "--appendonly", "yes")
	p := startServe(t, "--redis", own.URL())
	if n := strings.Count(p.text(), `"level":"WARN"`); n != 1 || !strings.Contains(p.text(),
		`"check":"redis.maxmemory-policy"`) {
		t.Errorf("%d warnings, want one:\n%s", n, p.text())
	}
}
