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

func TestDoctorExitCodes(t *testing.T) {
	clean := streamtest.OwnRedis(t, "--appendonly", "yes").URL()
	kept := streamtest.OwnRedis(t).URL() // nothing is stored on disk there: a warning
	natsURL := streamtest.OwnNATS(t).URL()
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	rules, bad := testkit.WriteFile(t, "rules.yml", devRulesText), testkit.WriteFile(t, "bad.yml",
		strings.Replace(devRulesText, "limit: 100", "limit: -1", 1))
	for _, x := range []struct {
		args            []string
		code            int
		check           string
		severity        doctor.Severity
		says            string
		without, exists string // a check that is not made, and one that is
	}{
		{[]string{"--redis", clean, "--nats", natsURL, "--rules", rules}, 0, "rules", doctor.OK, "1 rules", "",
			"nats.jetstream"},
		{[]string{"--redis", clean, "--nats", ""}, 0, "redis.reachable", doctor.OK, clean, "nats.reachable",
			"redis.acl"},
		{[]string{"--redis", kept, "--nats", natsURL}, 1, "redis.persistence", doctor.Warning, "nothing is kept",
			"rules", "nats.reachable"},
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
	for _, args := range [][]string{{"--redis", "embedded"}, {"--partitions", "none"}, {"--prefix", "A b"},
		{"--no-such-flag"}} {
		if code, out, errs := runProgram(t, "", append([]string{"doctor"}, args...)...); code != 2 || out != "" ||
			errs == "" {
			t.Errorf("doctor %v: exit code %d, want 2 and a message\n%s%s", args, code, out, errs)
		}
	}
	code, out, errs := runProgram(t, "", "doctor", "--redis", clean, "--nats", "")
	if code != 0 || !strings.Contains(out, "\nok       redis.maxmemory-policy") ||
		!strings.Contains(out, " 0 problems\n") || errs != "" {
		t.Errorf("text: exit code %d\n%s%s", code, out, errs)
	}
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
	for _, form := range []string{"S://user:hidden@H", "S://user:hid/hidden@H", "S://H,S://user:hidden@H",
		"S://user:hidden@H:bad", "hidden", "S://H?password=hidden"} {
		target := func(scheme, host string) string { return strings.NewReplacer("S", scheme, "H", host).Replace(form) }
		for _, at := range []string{closed, open} {
			for _, args := range [][]string{{"doctor", "--nats", ""}, {"append"},
				{"serve", "--rules", testkit.WriteFile(t, "rules.yml", devRulesText), "--http", "127.0.0.1:bad"}} {
				_, out, errs := runProgram(t, "", append(args, "--redis", target("redis", at))...)
				if strings.Contains(out+errs, "hid") {
					t.Errorf("%v with %s tells:\n%s%s", args[0], form, out, errs)
				}
			}
		}
		for _, at := range []string{closed, openNATS} {
			_, out, errs := runProgram(t, "", "doctor", "--redis", "redis://"+closed, "--nats", target("nats", at))
			if strings.Contains(out+errs, "hid") {
				t.Errorf("doctor with %s tells:\n%s%s", form, out, errs)
			}
		}
		if !strings.HasPrefix(form, "S://") || strings.HasSuffix(form, "/hidden") {
			continue // a host or a path, to HTTP
		}
		for _, args := range [][]string{{"check", "user:1", "--http", target("http", closed)},
			{"bench", "--target", target("http", closed), "--metrics", target("http", closed)}} {
			if _, out, errs := runProgram(t, "", args...); strings.Contains(out+errs, "hid") {
				t.Errorf("%v tells:\n%s%s", args, out, errs)
			}
		}
	}
}

// A Redis that stops answering delays a start for a second at most, and a start logs nothing twice.
func TestStartSaysEachThingOnce(t *testing.T) {
	own := streamtest.OwnRedis(t, "--maxmemory-policy", "volatile-lru", "--appendonly", "yes")
	p := startProgram(t, "serve", "--redis", own.URL(), "--rules", testkit.WriteFile(t, "rules.yml", devRulesText),
		"--http",
		"127.0.0.1:0")
	p.until(`"msg":"ready"`)
	if n := strings.Count(p.text(), `"level":"WARN"`); n != 1 || !strings.Contains(p.text(),
		`"check":"redis.maxmemory-policy"`) {
		t.Errorf("%d warnings, want one:\n%s", n, p.text())
	}
}
