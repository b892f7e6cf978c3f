package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

const devRulesText = `
rules:
  - name: api
    match: "user:*"
    windows: [{limit: 100, per: 6s}]
    alerts: [80%, 95%]
`

type devServer struct {
	*process
	redis, nats, http int
}

func startDev(t testing.TB, more ...string) *devServer {
	t.Helper()
	d := &devServer{redis: testkit.FreePort(t), nats: testkit.FreePort(t), http: testkit.FreePort(t)}
	args := []string{"dev", "--redis", fmt.Sprintf("embedded:%d", d.redis), "--nats",
		fmt.Sprintf("embedded:%d", d.nats),
		"--http", fmt.Sprintf("127.0.0.1:%d", d.http)}
	d.process = startProgram(t, append(args, more...)...)
	d.until("Ctrl-C stops it.")
	return d
}

func (d *devServer) get(path string) (*http.Response, string) {
	d.t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", d.http, path))
	testkit.Must(d.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(d.t, err)
	return resp, string(body)
}

// The main path with plain tools: a Redis client, a NATS client and an HTTP client, without any of our code.
func TestDevRunsTheMainJob(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", devRulesText))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", d.nats))
	testkit.Must(t, err)
	defer nc.Close()
	live := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("sc.>", live); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, nc.Flush())
	rdb := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", d.redis)})
	defer rdb.Close()
	d.get("/v1/check?key=user:1")
	passing := "sc:{" + partitionOf(t, "user:1") + "}:log:user:1"
	if rdb.Exists(ctx, passing).Val() != 1 {
		t.Errorf("there is no %s", passing)
	}
	pipe := rdb.Pipeline()
	for range 100 {
		pipe.Do(ctx, "XADD", "sc:{6}:events", "*", "key", "user:42", "count", "1")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	seen := []string{}
	next := func() *nats.Msg {
		select {
		case m := <-live:
			seen = append(seen, m.Subject)
			return m
		case <-ctx.Done():
			t.Fatalf("no message came; seen: %v", seen)
			return nil
		}
	}
	for _, want := range []string{"sc.alert.api.80.user:42", "sc.alert.api.95.user:42", "sc.alert.api.100.user:42",
		"sc.throttle.api.user:42"} {
		m := next()
		if m.Subject != want || m.Header.Get("ce-specversion") != "1.0" ||
			m.Header.Get("Nats-Msg-Id") != m.Header.Get("ce-id") {
			t.Fatalf("%s %v %s, expected %s", m.Subject, m.Header, m.Data, want)
		}
	}
	// A subscriber that comes later finds the throttled keys.
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	late, err := js.OrderedConsumer(ctx, "SC_THROTTLE",
		jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
	testkit.Must(t, err)
	m, err := late.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil || m.Subject() != "sc.throttle.api.user:42" || !strings.Contains(string(m.Data()),
		`"state":"throttled"`) {
		t.Fatalf("snapshot: %v, %v", m, err)
	}
	resp, body := d.get("/v1/check?key=user:42")
	if resp.StatusCode != 429 || resp.Header.Get("RateLimit-Policy") != `"api-6s";q=100;w=6` ||
		resp.Header.Get("Retry-After") == "" ||
		resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%s %v\n%s", resp.Status, resp.Header, body)
	}
	if released := next(); !strings.Contains(string(released.Data), `"state":"released"`) {
		t.Fatalf("%s %s, expected a release", released.Subject, released.Data)
	}
	if resp, body := d.get("/v1/check?key=user:42"); resp.StatusCode != 200 {
		t.Fatalf("after the release: %s\n%s", resp.Status, body)
	}
	// Keys of the embedded Redis expire: its clock is moved forward.
	streamtest.Eventually(t, 10*time.Second, "the other key's counter expires", func() (bool, string) {
		return rdb.Exists(ctx, passing).Val() == 0, "it is there"
	})
	if got := metric(t, fmt.Sprintf("http://127.0.0.1:%d", d.http), "streamcounter_events_folded_total"); got != "100" {
		t.Fatalf("events_folded_total is %s, expected 100", got)
	}
	if code := d.interrupt(); code != 0 {
		t.Fatalf("exit code %d after Ctrl-C", code)
	}
	if strings.Contains(d.text(), `"level":"ERROR"`) {
		t.Fatalf("errors in the log:\n%s", d.text())
	}
}

func TestTakenPortNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	for flag, value := range map[string]string{"redis": fmt.Sprintf("embedded:%d", taken),
		"nats": fmt.Sprintf("embedded:%d", taken), "http": fmt.Sprintf("127.0.0.1:%d", taken)} {
		args := map[string]string{"redis": "embedded:0", "nats": "embedded:0", "http": "127.0.0.1:0"}
		args[flag] = value
		code, out, errs := runProgram(t, "", "dev", "--redis", args["redis"], "--nats", args["nats"], "--http",
			args["http"])
		if code != 1 || !strings.Contains(errs, "--"+flag+" ") || !strings.Contains(errs, fmt.Sprint(taken)) {
			t.Errorf("taken port for --%s: exit code %d\n%s%s", flag, code, out, errs)
		}
	}
}

func TestBadFlags(t *testing.T) {
	rules := testkit.WriteFile(t, "rules.yml", devRulesText)
	bad := testkit.WriteFile(t, "bad.yml", strings.Replace(devRulesText, "limit: 100", "limit: -1", 1))
	closed, same := fmt.Sprintf("redis://127.0.0.1:%d", testkit.FreePort(t)), testkit.FreeAddr(t)
	for _, c := range []struct {
		args []string
		want []string // all in the message
	}{
		{[]string{"serve", "--rules", rules, "--redis", closed, "--http", "127.0.0.1:0"}, []string{"--redis", closed}},
		{[]string{"serve", "--rules", rules, "--redis", "http://x", "--http", "127.0.0.1:0"},
			[]string{"--redis", "http://x"}},
		{[]string{"append", "--redis", "redis:/host"}, []string{"--redis (STREAMCOUNTER_REDIS)", "no host",
			"redis://HOST:PORT"}},
		{[]string{"append", "--redis", "redis:///host"}, []string{"--redis", "no host"}},
		{[]string{"append", "--redis", "localhost:6379"}, []string{"--redis", "redis://HOST:PORT"}},
		{[]string{"serve", "--rules", rules, "--http", "8080"}, []string{"--http (STREAMCOUNTER_HTTP)", "HOST:PORT"}},
		{[]string{"serve", "--rules", bad, "--http", "127.0.0.1:0"}, []string{"bad.yml:5:23", "-1"}},
		{[]string{"serve", "--rules", "/does/not/exist.yml"}, []string{"--rules (STREAMCOUNTER_RULES)",
			"/does/not/exist.yml"}},
		{[]string{"serve", "--rules", rules, "--rls-algorithm", "leaky"}, []string{`algorithm "leaky"`}},
		{[]string{"serve", "--rules", rules, "--redis", closed, "--http", same, "--grpc", same},
			[]string{"--grpc", same, "expected another address than that of --http"}},
		{[]string{"append", "--redis", closed}, []string{"--redis", closed}},
		{[]string{"append", "--redis", "embedded"}, []string{"--redis", "embedded"}},
		{[]string{"dev", "--retention", "soon", "--redis", "embedded:0"}, []string{"--retention", "soon"}},
		{[]string{"rules", "check", bad}, []string{"bad.yml:5:23", "-1"}},
	} {
		code, out, errs := runProgram(t, "", c.args...)
		for _, want := range c.want {
			if code == 0 || !strings.Contains(errs, want) {
				t.Errorf("%v: exit code %d, no %q in\n%s%s", c.args, code, want, out, errs)
			}
		}
	}
	code, _, errs := runProgram(t, "", "check", "k", "--http", fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)))
	if code != 2 || !strings.Contains(errs, "--http") {
		t.Errorf("check without a server: exit code %d\n%s", code, errs)
	}
}

// The commands that dev suggests work with the rules that it was given.
func TestDevSuggestsKeysThatRulesMatch(t *testing.T) {
	for text, want := range map[string]string{
		devRulesText: "user:42",
		`{rules: [{name: a, match: "tenant-?:*", windows: [{limit: 1, per: 1s}]}]}`: "tenant-4:42",
		`{rules: [{name: a, match: "*", windows: [{limit: 7, per: 1s}]}]}`:          "user:42",
		`{rules: [{name: a, match: "org/*", windows: [{limit: 7, per: 1s}]}]}`:      "org/42",
		`{rules: [{name: a, match: "a b", windows: [{limit: 7, per: 1s}]}]}`:        "a b",
	} {
		rules, err := windows.Parse("rules.yml", []byte(text))
		testkit.Must(t, err)
		if key, _ := exampleKey(rules); key != want || rules.Match(key) == nil {
			t.Errorf("%s: %q, want %q", text, key, want)
		}
	}
}

// All commands that a user types, against one server.
func TestCommandsAgainstDev(t *testing.T) {
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", strings.Replace(devRulesText, "6s", "1h", 1)))
	d.until("\n    api (user:*): 100 in any hour")
	d.until(fmt.Sprintf("curl -i 'http://127.0.0.1:%d/v1/check?key=user%%3A42&cost=60'", d.http))
	redisURL, at := fmt.Sprintf("redis://127.0.0.1:%d", d.redis), fmt.Sprintf("127.0.0.1:%d", d.http)
	code, out, errs := runProgram(t, "user:1 3\nuser:1\n\nuser:2 abc\nuser:3 4 5\n"+strings.Repeat("x", 2<<20)+
		"\nuser:2 2\n", "append", "--redis",
		redisURL, "--json")
	var sum appendSummary
	if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 1 || sum.Events != 3 || sum.Rejected != 3 ||
		!strings.Contains(errs, "line 4: ") || !strings.Contains(errs, "line 5: ") ||
		!strings.Contains(errs, "line 6: the line is longer than 1048576 bytes") {
		t.Fatalf("append: exit code %d\n%s%s", code, out, errs)
	}
	streamtest.Eventually(t, 10*time.Second, "the events count", func() (bool, string) {
		_, out, _ := runProgram(t, "", "keys", "show", "user:1", "--http", at)
		return strings.Contains(out, "4 of 100 used"), out
	})
	if code, out, _ := runProgram(t, "", "check", "user:1", "96", "--http", at); code != 0 ||
		!strings.Contains(out, "allowed by rule api") {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	if code, out, _ := runProgram(t, "", "check", "user:1", "--http", at, "--json"); code != 1 ||
		!strings.Contains(out, `"allowed":false`) {
		t.Errorf("check over the limit: exit code %d\n%s", code, out)
	}
	if code, _, errs := runProgram(t, "", "check", "user:1", "101", "--http", at); code != 2 ||
		!strings.Contains(errs, "allows 100 at most") {
		t.Errorf("check above the limit: exit code %d\n%s", code, errs)
	}
	if code, out, _ := runProgram(t, "", "check", "nobody", "--http", at); code != 0 ||
		!strings.Contains(out, "no rule matches") {
		t.Errorf("check of a key without a rule: exit code %d\n%s", code, out)
	}
	if code, out, errs := runProgram(t, "", "keys", "reset", "user:1", "--http", at); code != 0 {
		t.Errorf("reset: exit code %d\n%s%s", code, out, errs)
	}
	for args, want := range map[string]string{"reset user:*": "user:* is no key that has a count",
		"reset user:2001:db8::/32": "cannot be reset", "block ip:10.0.0.0/33 --yes": "10.0.0.0/33\" is no network"} {
		if code, _, errs := runProgram(t, "", append(append([]string{"keys"}, strings.Fields(args)...), "--http",
			at)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
	if code, _, errs := runProgram(t, "", "append", "--redis", redisURL, "--partitions", "8"); code != 1 ||
		!strings.Contains(errs, "16") || !strings.Contains(errs, "8") {
		t.Errorf("wrong number of partitions: exit code %d\n%s", code, errs)
	}
	for format, c := range map[string][2]string{
		"lines": {"user:5\n\"user:6\n{}\n", "warning: line 2 looks like JSON"},
		"clf": {`203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5` + "\n",
			"warning: the log begins at 2015-05-17 10:05:03, and its events count as of now"},
	} {
		if code, _, errs := runProgram(t, c[0], "append", "--redis", redisURL, "--format", format); code != 0 ||
			strings.Count(errs, "warning: ") != 1 || !strings.Contains(errs, c[1]) {
			t.Errorf("append of %s: exit code %d\n%s", format, code, errs)
		}
	}
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"--help"}, {"dev", "--help"}} {
		if code, out, errs := runProgram(t, "", args...); code != 0 || out == "" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}
