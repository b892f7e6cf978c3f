package main

import (
	"encoding/json"
	"fmt"
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
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	bad := testkit.WriteFile(t, "bad.yml", strings.Replace(devRulesText, "limit: 100", "limit: -1", 1))
	for _, x := range []struct {
		args            []string
		code            int
		check           string
		severity        doctor.Severity
		says            string
		without, exists string // a check that is not made, and one that is
	}{
		{[]string{"--redis", clean, "--nats", natsURL, "--rules", devRules(t)}, 0, "rules", doctor.OK, "1 rules", "",
			"nats.jetstream"},
		{[]string{"--redis", clean, "--nats", ""}, 0, "redis.reachable", doctor.OK, clean, "nats.reachable",
			"redis.acl"},
		{[]string{"--redis", clean, "--nats", natsURL, "--rules", bad}, 1, "rules", doctor.Problem, "bad.yml:5:23",
			"", "nats.SC_ALERTS"},
		{[]string{"--redis", clean, "--nats", "nats://" + closed}, 2, "nats.reachable", doctor.Problem, closed,
			"nats.jetstream", "redis.clock"},
		{[]string{"--redis", "redis://" + closed, "--nats", natsURL}, 2, "redis.reachable", doctor.Problem, closed,
			"redis.clock", "nats.jetstream"},
	} {
		code, r, text := runDoctor(t, x.args...)
		if code != x.code {
			t.Errorf("doctor %v: exit code %d, want %d\n%s", x.args, code, x.code, text)
		}
		wantFinding(t, r, x.check, x.severity, x.says)
		if x.without != "" && strings.Contains(text, `"`+x.without) {
			t.Errorf("doctor %v looks at %s", x.args, x.without)
		}
		if !strings.Contains(text, `"`+x.exists) {
			t.Errorf("doctor %v does not look at %s", x.args, x.exists)
		}
	}
	expect(t, "doctor --redis embedded", 2, "--redis")
	expect(t, "doctor --no-such-flag", 2, "--no-such-flag")
	expect(t, "doctor --redis "+clean+" --nats=", 0, "\nok       redis.maxmemory-policy", " 0 problems\n")
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
// other forms of passwords.
func TestSecretsAreNotTold(t *testing.T) {
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	open := strings.TrimPrefix(streamtest.Redis(t), "redis://")
	openNATS := strings.TrimPrefix(streamtest.NATS(t), "nats://")
	serve := "serve --http 127.0.0.1:bad --rules " + devRules(t)
	for _, form := range []string{"S://user:hidden@H", "S://user:hid/hidden@H", "S://H,S://user:hidden@H",
		"S://user:hidden@H:bad", "hidden", "S://H?password=hidden"} {
		target := func(scheme, host string) string { return strings.NewReplacer("S", scheme, "H", host).Replace(form) }
		for _, at := range []string{closed, open} {
			for _, line := range []string{"doctor --nats=", "append", serve} {
				untold(t, line+" --redis "+target("redis", at))
			}
		}
		for _, at := range []string{closed, openNATS} {
			untold(t, "doctor --redis redis://"+closed+" --nats "+target("nats", at))
		}
		if !strings.HasPrefix(form, "S://") || strings.HasSuffix(form, "/hidden") {
			continue // a host or a path, to HTTP
		}
		untold(t, "check user:1 --http "+target("http", closed))
		untold(t, "bench --target "+target("http", closed)+" --metrics "+target("http", closed))
	}
}

// untold runs a command line that has a password, and expects that it fails and does not tell the password.
func untold(t *testing.T, line string) {
	t.Helper()
	if _, out, errs := runProgram(t, "", strings.Fields(line)...); strings.Contains(out+errs, "hid") {
		t.Errorf("%s tells:\n%s%s", line, out, errs)
	}
}

// A Redis that stops answering delays a start for a second at most, and a start logs nothing twice.
func TestStartSaysEachThingOnce(t *testing.T) {
	own := streamtest.OwnRedis(t, "--maxmemory-policy", "volatile-lru", "--appendonly", "yes")
	p := startServe(t, "--redis", own.URL())
	if n := strings.Count(p.text(), `"level":"WARN"`); n != 1 || !strings.Contains(p.text(),
		`"check":"redis.maxmemory-policy"`) {
		t.Errorf("%d warnings, want one:\n%s", n, p.text())
	}
}
