package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/settings"
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

// devServer is a dev with Redis and NATS embedded at known ports.
type devServer struct {
	*process
	redis, nats string // URLs
	at          string // HOST:PORT of its HTTP server
	args        []string
}

func startDev(t testing.TB, more ...string) *devServer {
	t.Helper()
	redis, nats, at := testkit.FreePort(t), testkit.FreePort(t), testkit.FreeAddr(t)
	d := &devServer{redis: fmt.Sprintf("redis://127.0.0.1:%d", redis), nats: fmt.Sprintf("nats://127.0.0.1:%d", nats),
		at: at, args: append([]string{"dev", "--redis", fmt.Sprintf("embedded:%d", redis), "--nats",
			fmt.Sprintf("embedded:%d", nats), "--http", at}, more...)}
	d.process = startProgram(t, d.args...)
	d.until("Ctrl-C stops it.")
	return d
}

func (d *devServer) url() string { return "http://" + d.at }

func (d *devServer) get(path string) (*http.Response, string) {
	d.t.Helper()
	return call(d.t, http.DefaultClient, "GET", d.url()+path, "")
}

// The main path with plain tools: a Redis client, a NATS client and an HTTP client, without any of our code.
func TestDevRunsTheMainJob(t *testing.T) {
	t.Parallel()
	d := startDev(t, "--rules", devRules(t))
	d.until("\n    api (user:*): 100 in any 6 seconds")
	d.until("curl -i '" + d.url() + "/v1/check?key=user%3A42&cost=60'")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, err := nats.Connect(d.nats)
	testkit.Must(t, err)
	defer nc.Close()
	live := make(chan *nats.Msg, 100)
	_, err = nc.ChanSubscribe("sc.>", live)
	testkit.Must(t, err)
	testkit.Must(t, nc.Flush())
	rdb := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(d.redis, "redis://")})
	defer rdb.Close()
	d.get("/v1/check?key=user:1")
	passing := "sc:{" + partitionOf(t, "user:1") + "}:log:user:1"
	if rdb.Exists(ctx, passing).Val() != 1 {
		t.Errorf("there is no %s", passing)
	}
	for range 100 {
		testkit.Must(t, rdb.Do(ctx, "XADD", "sc:{6}:events", "*", "key", "user:42", "count", "1").Err())
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
	const decision = "sc.throttle.api.user:42" // it does not wait for the alerts
	want := []string{"sc.alert.api.80.user:42", "sc.alert.api.95.user:42", "sc.alert.api.100.user:42"}
	for range len(want) + 1 {
		m := next()
		if m.Header.Get("ce-specversion") != "1.0" || m.Header.Get("Nats-Msg-Id") != m.Header.Get("ce-id") {
			t.Errorf("%s %v %s", m.Subject, m.Header, m.Data)
		}
	}
	alerts := slices.DeleteFunc(slices.Clone(seen), func(subject string) bool { return subject == decision })
	if !slices.Equal(alerts, want) {
		t.Fatalf("published %v, expected %v, and %s", seen, want, decision)
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
	streamtest.Eventually(t, "the other key's counter expires", func() (bool, string) {
		return rdb.Exists(ctx, passing).Val() == 0, "it is there"
	})
	if got := metric(t, d.url(), "streamcounter_events_folded_total"); got != "100" {
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
		line := "dev --redis embedded:0 --nats embedded:0 --http 127.0.0.1:0 --" + flag + " " + value
		expect(t, line, 1, "another address with --"+flag, fmt.Sprint(taken))
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

// The requests and events that dev suggests succeed, whatever kind of windows a rule has.
func TestDevSuggestsWhatWorks(t *testing.T) {
	kinds := []string{
		`{name: plain, match: "user:*", windows: [{limit: 100, per: 1h}]}`,
		`{name: huge, match: "big:*", windows: [{limit: 1000000000000, per: 1h}]}`,
		`{name: stuffing, match: "ip:*", windows: [{limit: 3, per: 10m, distinct: user}]}`,
		`{name: two, match: "two:*", windows: [{limit: 3, per: 10m, distinct: user}, {limit: 9, per: 1m},
			{limit: 9, per: 1h, distinct: agent.v-1, normalize: [trim, lower]}, {limit: 9, per: 1d, distinct: user}]}`,
		`{name: jobs, match: "jobs '*", windows: [{limit: 20, in_flight: 30s}]}`,
		`{name: both, match: "both:*", windows: [{limit: 20, in_flight: 30s}, {limit: 100, per: 1h}]}`,
	}
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", "rules:\n- "+strings.Join(kinds, "\n- ")))
	rdb := streamtest.Connect(t, d.redis)
	keys := keysOf(t, "sc")
	events := 0
	for _, kind := range kinds {
		rules, err := windows.Parse("rules.yml", []byte("rules: ["+kind+"]"))
		testkit.Must(t, err)
		var said strings.Builder
		welcome(&said, "", node.Started{Redis: d.redis, HTTP: d.url(), Keys: keys, Rules: rules})
		for line := range strings.Lines(said.String()) {
			switch {
			case strings.HasPrefix(line, "  curl -i "):
				words, method, body := shellWords(t, line), http.MethodGet, ""
				if words[2] == "-d" {
					method, body = http.MethodPost, words[3]
				}
				resp, text := call(t, http.DefaultClient, method, words[len(words)-1], body)
				if resp.StatusCode/100 != 2 {
					t.Errorf("%s%s\n%s", line, resp.Status, text)
				}
			case strings.HasPrefix(line, "  redis-cli -u "):
				events++
				var args []any
				for _, word := range shellWords(t, line)[3:] {
					args = append(args, word)
				}
				testkit.Must(t, rdb.Do(t.Context(), args...).Err())
			}
		}
	}
	if events != len(kinds)-1 { // jobs counts none
		t.Errorf("%d events, want one of each rule that counts them", events)
	}
	streamtest.Eventually(t, "the events count", func() (bool, string) {
		got := metric(t, d.url(), "streamcounter_events_folded_total")
		return got == fmt.Sprint(events), got + " of " + fmt.Sprint(events)
	})
}

func shellWords(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", "printf '%s\\n' "+line).Output()
	testkit.Must(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func TestVersion(t *testing.T) {
	for _, line := range []string{"version", "version --json", "--version", "-v"} {
		expect(t, line, 0, version)
	}
	labels := fmt.Sprintf("{commit=%q,go_version=%q,version=%q}", thisBuild().Commit, thisBuild().Go, version)
	if n := metric(t, startServe(t).base(), "streamcounter_build_info"+labels); n != "1" {
		t.Errorf("/metrics: %s, want 1 for %s", n, labels)
	}
}

// Commands for trials take Redis and NATS only from flags, and warn about the variables that they ignored.
func TestTheEnvironmentChoosesNoDeploymentToTryThingsOn(t *testing.T) {
	t.Setenv("STREAMCOUNTER_REDIS", "redis://production")
	t.Setenv("STREAMCOUNTER_NATS", "nats://production")
	for name, cmd := range map[string]*cobra.Command{"dev": newDev(), "bench": newBench(),
		"pipeline": newBenchPipeline(), "compare": newCompare()} {
		testkit.Must(t, cmd.PreRunE(cmd, nil))
		for _, flag := range []string{"redis", "nats"} {
			if f := cmd.Flags().Lookup(flag); f != nil && (f.Value.String() != f.DefValue ||
				strings.Contains(f.Usage, settings.EnvName(flag)+"]")) {
				t.Errorf("%s --%s is %s, %s", name, flag, f.Value, f.Usage)
			}
		}
	}
	t.Setenv("STREAMCOUNTER_NATS_CREDS", "production.creds")
	p := startProgram(t, "dev", "--redis", "embedded:0", "--nats", "embedded:0", "--http", "127.0.0.1:0")
	p.until("STREAMCOUNTER_NATS_CREDS is ignored: this command takes --nats-creds from the command line alone")
	p.until("Ctrl-C stops it.")
}

// dev refuses a prefix that other processes use with other rules; with the same rules dev may join.
func TestDevRefusesAPrefixOfOtherRules(t *testing.T) {
	redis, prefix := streamtest.Redis(t), streamtest.Prefix(t)
	rules := devRules(t)
	serve := startProgram(t, "serve", "--redis", redis, "--prefix", prefix, "--rules", rules, "--http", "127.0.0.1:0")
	serve.until(`"msg":"ready"`)
	dev := "dev --redis " + redis + " --nats embedded:0 --http 127.0.0.1:0 --prefix " + prefix
	keys := keysOf(t, prefix)
	c := streamtest.Connect(t, redis)
	streamtest.Eventually(t, "serve has announced its rules", func() (bool, string) {
		n, err := c.HLen(t.Context(), keys.Processes()).Result()
		return n == 1, fmt.Sprint(n, err)
	})
	expect(t, dev, 1, "--prefix (STREAMCOUNTER_PREFIX): "+prefix, "is used by processes with other rules")
	startProgram(t, strings.Fields(dev+" --rules "+rules)...).until("Ctrl-C stops it.")
}
