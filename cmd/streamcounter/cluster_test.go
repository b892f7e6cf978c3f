package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

const clusterRulesText = `
rules:
  - name: api
    match: "user:*"
    windows: [{limit: 10, per: 1h}]
    alerts: [50%]
  - name: load
    match: "load:*"
    windows: [{limit: 1000000, per: 1h}]
`

var httpAddress = regexp.MustCompile(`"http":"([^"]+)"`)

// base waits until a process is ready and gives the address of its HTTP interface.
func (p *process) base() string {
	p.t.Helper()
	p.until(`"msg":"ready"`)
	return "http://" + httpAddress.FindStringSubmatch(p.text())[1]
}

func request(t testing.TB, method, url, body string) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	testkit.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(b)
}

func TestProgramOnACluster(t *testing.T) {
	c := streamtest.Cluster(t)
	t.Run("everything works", func(t *testing.T) { everythingOnACluster(t, c) })
	t.Run("connections", func(t *testing.T) { connectionsToACluster(t, c) })
	t.Run("one node is not the Cluster", func(t *testing.T) {
		one, _, _ := strings.Cut(c.URL(), ",")
		code, _, said := runProgram(t, "", "serve", "--redis", one, "--rules",
			testkit.WriteFile(t, "rules.yml", clusterRulesText), "--http", "127.0.0.1:0", "--prefix",
			streamtest.Prefix(t))
		if code == 0 || !strings.Contains(said, "one node of a Redis Cluster") {
			t.Errorf("exit code %d, it said: %s", code, said)
		}
	})
}

// The whole program, from events and checks to decisions on NATS.
func everythingOnACluster(t *testing.T, c *streamtest.RedisCluster) {
	w := newWorldAt(t, c.URL(), 16, clusterRulesText)
	work := w.worker()
	serve := startProgram(t, "serve", "--redis", w.redisURL, "--prefix", w.prefix, "--rules", w.rulesFile, "--http",
		"127.0.0.1:0")
	at, workAt := serve.base(), work.base()

	var lines, body strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "user:%d 3\n", i)
		fmt.Fprintf(&body, `{"key":"user:%d","count":3}`+"\n", i)
	}
	if code, _, said := runProgram(t, lines.String(), "append", "--redis", w.redisURL, "--prefix",
		w.prefix); code != 0 || !strings.Contains(said, "appended 40 events") {
		t.Fatalf("append: exit code %d: %s", code, said)
	}
	if code, got := request(t, "POST", at+"/v1/events", body.String()); code != 202 || !strings.Contains(got, "40") {
		t.Fatalf("POST /v1/events: %d %s", code, got)
	}
	w.drained()
	want := map[string]int64{}
	for i := range 40 {
		want[fmt.Sprintf("user:%d", i)] = 6
	}
	w.sameCounts(want)

	// Checks: of one key, of keys in one partition, of keys in several.
	for _, ask := range []struct {
		body  string
		code  int
		parts []string
	}{
		{`{"key":"user:1","cost":4}`, 200, []string{`"used":10`}},
		{`{"key":"user:1"}`, 429, nil},
		{`{"checks":[{"key":"a{user:2}"},{"key":"user:2{user:2}"},{"key":"user:2"}]}`, 200, []string{`"atomic":true`}},
		{`{"checks":[{"key":"user:3"},{"key":"user:4"},{"key":"user:5"},{"key":"user:6"}]}`, 200,
			[]string{`"atomic":false`, `"used":7`}},
	} {
		streamtest.Eventually(t, 10*time.Second, "the check "+ask.body, func() (bool, string) {
			code, got := request(t, "POST", at+"/v1/check", ask.body)
			ok := code == ask.code && !strings.Contains(got, "on_error")
			for _, p := range ask.parts {
				ok = ok && strings.Contains(got, p)
			}
			return ok, fmt.Sprint(code, got)
		})
	}
	if code, got := request(t, "GET", at+"/v1/keys/user:1", ""); code != 200 || !strings.Contains(got, `"used":10`) {
		t.Errorf("peek: %d %s", code, got)
	}
	if code, got := request(t, "GET", at+"/v1/throttled", ""); code != 200 || !strings.Contains(got, `"user:1"`) ||
		strings.Contains(got, `"user:2"`) {
		t.Errorf("throttled: %d %s", code, got)
	}
	if code, got := request(t, "DELETE", at+"/v1/keys/user:1", ""); code != 200 && code != 204 {
		t.Errorf("reset: %d %s", code, got)
	}
	if code, got := request(t, "GET", at+"/v1/throttled", ""); code != 200 || strings.Contains(got, `"user:1"`) {
		t.Errorf("throttled after the reset: %d %s", code, got)
	}
	w.drained()
	streamtest.Eventually(t, 20*time.Second, "the transitions of user:1 and user:2 are on NATS", func() (bool, string) {
		alerts, throttles := w.published()
		got := fmt.Sprint(alerts["user:1"], throttles["user:1"], alerts["user:2"])
		return got == "[raised 50 raised 100 cleared 100 cleared 50] [released 100] [raised 50]" ||
			got == "[raised 50 raised 100 cleared 50 cleared 100] [released 100] [raised 50]", got
	})
	for _, sample := range []string{"pending_events", "outbox_depth", "oldest_unread_seconds"} {
		for p := range 16 {
			streamtest.Eventually(t, 15*time.Second, "the gauge is measured", func() (bool, string) {
				got := metric(t, workAt, fmt.Sprintf(`streamcounter_%s{partition="%d"}`, sample, p))
				return got == "0", got
			})
		}
	}
	for _, url := range []string{at, workAt} {
		if code, got := request(t, "GET", url+"/readyz", ""); code != 200 {
			t.Errorf("%s/readyz: %d %s", url, code, got)
		}
	}
	// With nothing to do each partition has two reads waiting.
	if n := awaitBlocked(t, c, 2*16); n[c.MasterOf(c.Slot(w.keys.Events(0)))] == 0 {
		t.Errorf("blocked reads by node: %v", n)
	}
	for _, p := range []*process{serve, work} {
		if code := p.interrupt(); code != 0 {
			t.Errorf("exit code %d after SIGINT:\n%s", code, p.text())
		}
	}
	for p := range 16 {
		if n := w.redis.Exists(context.Background(), w.keys.Relay(p)).Val(); n != 0 {
			t.Errorf("the lease of partition %d is still held", p)
		}
	}
}

// awaitBlocked waits until just so many clients are blocked, and gives them by node.
func awaitBlocked(t testing.TB, c *streamtest.RedisCluster, want int) map[string]int {
	t.Helper()
	var got map[string]int
	streamtest.Eventually(t, 30*time.Second, fmt.Sprintf("%d reads wait", want), func() (bool, string) {
		got = map[string]int{}
		sum := 0
		c.Each(func(addr string, node *redis.Client) {
			info, err := node.Info(context.Background(), "clients").Result()
			if err != nil {
				t.Error(err)
			}
			_, rest, _ := strings.Cut(info, "blocked_clients:")
			var n int
			_, _ = fmt.Sscan(rest, &n)
			got[addr] = n
			sum += n
		})
		return sum == want, fmt.Sprint(got)
	})
	return got
}

// connections counts the clients of each node that are neither nodes nor the test's own.
func connections(t testing.TB, c *streamtest.RedisCluster, before map[string]int) map[string]int {
	t.Helper()
	got := map[string]int{}
	c.Each(func(addr string, node *redis.Client) {
		list, err := node.Do(context.Background(), "CLIENT", "LIST", "TYPE", "normal").Text()
		if err != nil {
			t.Error(err)
		}
		got[addr] = strings.Count(list, "id=") - before[addr]
	})
	return got
}

// docs/architecture.md, "Connections": how many each process has to each node at
// most, with more partitions than a pool of a usual size could block for.
func connectionsToACluster(t *testing.T, c *streamtest.RedisCluster) {
	const partitions = 100
	before := connections(t, c, nil)
	prefix, rules := streamtest.Prefix(t), testkit.WriteFile(t, "rules.yml", clusterRulesText)
	keys, err := stream.NewKeys(prefix, partitions)
	testkit.Must(t, err)
	common := []string{"--redis", c.URL(), "--prefix", prefix, "--partitions", fmt.Sprint(partitions), "--rules",
		rules, "--http", "127.0.0.1:0"}
	onNode := map[string]int{} // partitions
	for p := range partitions {
		onNode[c.MasterOf(c.Slot(keys.Events(p)))]++
	}
	pool := 10*runtime.GOMAXPROCS(0) + 10 // the latter for pipelines
	bound := func(who string, addr string) int {
		n, master := onNode[addr]
		switch {
		case who == "serve" && master:
			return pool
		case who == "work" && master:
			return pool + 2*n + 1
		}
		return 3 // a replica: asked for the map of slots now and then, by either client, and pinged
	}
	hold := func(who, when string, got map[string]int) {
		t.Helper()
		t.Logf("%s, %s: connections by node %v, of them for blocked reads %v x 2", who, when, got, onNode)
		for addr, n := range got {
			if n > bound(who, addr) {
				t.Errorf("%s, %s: %d connections to %s, at most %d are documented", who, when, n, addr,
					bound(who, addr))
			}
		}
	}

	work := startProgram(t, append([]string{"work", "--nats", streamtest.NATS(t)}, common...)...)
	workAt := work.base()
	awaitBlocked(t, c, 2*partitions) // all of them: none waits for a connection
	hold("work", "idle", connections(t, c, before))

	// Events for all partitions, while all of their readers block: nobody waits for
	// them to end.
	opts, err := redisOptions(c.URL())
	testkit.Must(t, err)
	opts.PoolSize = 1
	client := openRedisClient(opts)
	log, err := stream.NewLog(client, keys, time.Hour)
	testkit.Must(t, err)
	events := make([]api.Event, 4000)
	for round := range 5 {
		for i := range events {
			events[i] = api.Event{Key: fmt.Sprintf("load:%d", i%500), Count: 1}
		}
		if out := log.Append(t.Context(), events); out.Err != nil {
			t.Fatal(out.Err)
		}
		// Its own client has one connection to each node.
		got := connections(t, c, before)
		for addr := range got {
			got[addr] = max(0, got[addr]-1)
		}
		hold("work", fmt.Sprintf("under load %d", round), got)
	}
	streamtest.Eventually(t, 30*time.Second, "all are folded", func() (bool, string) {
		got := metric(t, workAt, "streamcounter_events_folded_total")
		return got == "20000", got
	})
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if code := work.interrupt(); code != 0 {
		t.Errorf("work: exit code %d", code)
	}
	none := func() (bool, string) {
		got := connections(t, c, before)
		for _, n := range got {
			if n > 0 {
				return false, fmt.Sprint(got)
			}
		}
		return true, ""
	}
	streamtest.Eventually(t, 10*time.Second, "no connection is left", none)

	serve := startProgram(t, append([]string{"serve"}, common...)...)
	at := serve.base()
	hold("serve", "idle", connections(t, c, before))
	var all sync.WaitGroup
	for g := range 4 * pool { // more callers than connections
		all.Go(func() {
			for i := range 10 {
				resp, err := http.Get(fmt.Sprintf("%s/v1/check?key=load:%d", at, g*10+i))
				if err != nil {
					t.Error(err)
					return
				}
				var answer api.CheckAnswer
				err = json.NewDecoder(resp.Body).Decode(&answer)
				resp.Body.Close()
				if err != nil || !answer.Allowed {
					t.Errorf("%+v, %v", answer, err)
				}
			}
		})
	}
	all.Wait()
	busy := connections(t, c, before)
	hold("serve", "under load", busy)
	if counts := slices.Sorted(maps.Values(busy)); counts[len(counts)-1] < 2 {
		t.Errorf("serve has %v connections: nothing was tested", busy)
	}
}
