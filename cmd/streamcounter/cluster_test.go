package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

const clusterRulesText = `rules: [{name: load, match: "load:*", windows: [{limit: 1000000, per: 1h}]}]`

// base waits until a process is ready and returns the address of its HTTP server.
func (p *process) base() string {
	p.t.Helper()
	p.until(`"msg":"ready"`)
	return "http://" + readyAt.FindStringSubmatch(p.text())[1]
}

// awaitBlocked waits until exactly so many clients are blocked.
func awaitBlocked(t testing.TB, c *streamtest.RedisCluster, want int) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprintf("%d reads wait", want), func() (bool, string) {
		sum := 0
		c.Each(func(_ string, node *redis.Client) {
			_, rest, _ := strings.Cut(node.Info(context.Background(), "clients").Val(), "blocked_clients:")
			var n int
			_, _ = fmt.Sscan(rest, &n)
			sum += n
		})
		return sum == want, fmt.Sprint(sum)
	})
}

// connections counts the clients of each node that are neither nodes nor the test's own.
func connections(t testing.TB, c *streamtest.RedisCluster, before map[string]int) map[string]int {
	t.Helper()
	got := map[string]int{}
	c.Each(func(addr string, node *redis.Client) {
		list, err := node.Do(context.Background(), "CLIENT", "LIST", "TYPE", "normal").Text()
		testkit.Must(t, err)
		got[addr] = strings.Count(list, "id=") - before[addr]
	})
	return got
}

// docs/architecture.md, "Connections": the maximum of each process to each node, with more partitions than a pool of
// the default size has connections.
func TestConnectionsToACluster(t *testing.T) {
	t.Parallel()
	const partitions = 100
	c := streamtest.Cluster(t)
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
	pool := 10*runtime.GOMAXPROCS(0) + 10 // the second term is for pipelines
	bound := func(who string, addr string) int {
		n, master := onNode[addr]
		switch {
		case who == "serve" && master:
			return pool
		case who == "work" && master:
			return pool + 2*n + 1
		}
		return 3 // a replica: either client asks it for the map of slots now and then, and it is pinged
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
	awaitBlocked(t, c, 2*partitions) // all readers are blocked, and none waits for a connection
	hold("work", "idle", connections(t, c, before))

	// Events are appended to all partitions while all of their readers are blocked: no append waits for a reader.
	client, err := backend.ConnectRedis(t.Context(), settings.Redis{URL: c.URL()}, 1)
	testkit.Must(t, err)
	log, err := stream.NewLog(client, keys, time.Hour)
	testkit.Must(t, err)
	events := make([]api.Event, 4000)
	for i := range events {
		events[i] = api.Event{Key: fmt.Sprintf("load:%d", i%500), Count: 1}
	}
	for range 5 {
		testkit.Must(t, log.Append(t.Context(), events).Err)
		got := connections(t, c, before)
		for addr := range got {
			got[addr] = max(0, got[addr]-1) // the test's own client has one connection to each node
		}
		hold("work", "under load", got)
	}
	streamtest.Eventually(t, "all are folded", func() (bool, string) {
		got := metric(t, workAt, "streamcounter_events_folded_total")
		return got == "20000", got
	})
	testkit.Must(t, client.Close())
	if code := work.interrupt(); code != 0 {
		t.Errorf("work: exit code %d", code)
	}
	streamtest.Eventually(t, "no connection is left", func() (bool, string) {
		got := connections(t, c, before)
		return slices.Max(slices.Collect(maps.Values(got))) <= 0, fmt.Sprint(got)
	})

	serve := startProgram(t, append([]string{"serve"}, common...)...)
	at := serve.base()
	hold("serve", "idle", connections(t, c, before))
	var all sync.WaitGroup
	for g := range 4 * pool { // more callers than connections
		all.Go(func() {
			for i := range 10 {
				code, body := request(t, "GET", fmt.Sprintf("%s/v1/check?key=load:%d", at, g*10+i), "")
				if code != http.StatusOK || !strings.Contains(body, `"allowed":true`) {
					t.Errorf("%d %s", code, body)
				}
			}
		})
	}
	all.Wait()
	busy := connections(t, c, before)
	hold("serve", "under load", busy)
	if slices.Max(slices.Collect(maps.Values(busy))) < 2 {
		t.Errorf("serve has %v connections: nothing was tested", busy)
	}
}

// operated is Redis, NATS, one `work`, two `serve` and a guard.
type operated struct {
	t                 *testing.T
	redis, nats       string
	prefix, rulesFile string
	work              *process
	serve             [2]*process
	at                [2]string // HOST:PORT of each serve
	guard             *guard.Guard
}

func operate(t *testing.T, redisURL string) *operated {
	t.Helper()
	o := &operated{t: t, redis: redisURL, nats: streamtest.OwnNATS(t).URL(), prefix: streamtest.Prefix(t),
		rulesFile: filepath.Join(t.TempDir(), "rules.yml")}
	testkit.Must(t, os.WriteFile(o.rulesFile, []byte(devRulesText), 0o600))
	o.startWork()
	for i := range o.serve {
		o.startServe(i)
	}
	nc := streamtest.ConnectNATS(t, o.nats, nats.MaxReconnects(-1))
	var err error
	o.guard, err = guard.New(nc, guard.Config{Prefix: o.prefix, Rules: []string{"api"}})
	testkit.Must(t, err)
	testkit.Run(t, func(ctx context.Context) { _ = o.guard.Run(ctx) })
	within, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	testkit.Must(t, o.guard.Ready(within))
	return o
}

func (o *operated) startWork() {
	o.work = startProgram(o.t, "work", "--redis", o.redis, "--nats", o.nats, "--prefix", o.prefix,
		"--rules", o.rulesFile, "--http", testkit.FreeAddr(o.t))
	o.work.until("ready")
}

func (o *operated) startServe(i int) {
	o.at[i] = testkit.FreeAddr(o.t)
	args := []string{"serve", "--redis", o.redis, "--prefix", o.prefix, "--rules", o.rulesFile, "--http", o.at[i],
		"--grpc", ""}
	if i == 0 { // the other has none
		args = append(args, "--nats", o.nats)
	}
	o.serve[i] = startProgram(o.t, args...)
	o.serve[i].until("ready")
}

func (o *operated) status(i int, key string) int {
	o.t.Helper()
	code, _ := request(o.t, "GET", "http://"+o.at[i]+"/v1/check?key="+key, "")
	return code
}

func (o *operated) keys(i int, line string) {
	o.t.Helper()
	expect(o.t, "keys "+line+" --http "+o.at[i], 0)
}

func (o *operated) eventually(what string, holds func() bool) {
	o.t.Helper()
	streamtest.Eventually(o.t, what, func() (bool, string) { return holds(), "it is not so" })
}

// Guards and every server apply a block, also after restarts, until it is removed. On one server it works in the same
// way; there the tests of internal/counters and consumers cover the parts with the users of deploy/.
func TestABlockReachesGuardsAndServersOnACluster(t *testing.T) {
	t.Parallel()
	c := streamtest.Cluster(t)
	// One node is named, and the client finds the others.
	if code, _, said := runProgram(t, "", "functions", "load", "--redis", "redis://"+c.Addrs()[0]); code != 0 {
		t.Errorf("exit code %d, %s", code, said)
	}
	c.Each(func(addr string, node *redis.Client) {
		list, err := node.FunctionList(t.Context(), redis.FunctionListQuery{}).Result()
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", addr, list, err)
		}
	})
	o := operate(t, c.URL())
	o.keys(0, "block user:1 --for 1h --reason abuse")
	o.eventually("the guard has the block", func() bool { return o.guard.Throttled("user:1") })
	o.eventually("the other server has the block", func() bool { return o.status(1, "user:1") == 429 })
	if d, _ := o.guard.Lookup("user:1"); d.Reason != "abuse" || d.Rule != "override" {
		t.Errorf("the guard has %+v", d)
	}

	o.serve[1].interrupt()
	o.work.interrupt()
	o.startServe(1)
	if code := o.status(1, "user:1"); code != 429 {
		t.Errorf("a server that has just started answers %d for a blocked key", code)
	}
	o.startWork()

	o.keys(1, "clear user:1 --reason settled")
	o.eventually("the guard lets the key go", func() bool { return !o.guard.Throttled("user:1") })
	o.eventually("the other server lets the key go", func() bool { return o.status(0, "user:1") == 200 })

	// A replica takes over: its overrides are in force, in running processes and in those that start after that.
	o.keys(0, "block user:7 --reason abuse")
	keys := keysOf(t, o.prefix)
	slot := c.Slot(keys.Overrides(keys.Partition("user:7")))
	client := redis.NewClient(&redis.Options{Addr: c.MasterOf(slot)})
	defer client.Close()
	master := client.Conn() // WAIT covers only the writes of its own connection
	defer master.Close()
	testkit.Must(t, master.Incr(t.Context(), keys.Overrides(keys.Partition("user:7"))+":test").Err())
	if n, err := master.Wait(t.Context(), 1, 20*time.Second).Result(); err != nil || n < 1 {
		t.Fatalf("%d replicas have the block, %v", n, err)
	}
	c.AwaitNewMaster(slot, c.KillMasterOf(slot))
	o.eventually("the servers that run deny the key", func() bool {
		return o.status(0, "user:7") == 429 && o.status(1, "user:7") == 429
	})
	o.serve[1].interrupt()
	o.startServe(1)
	if code := o.status(1, "user:7"); code != 429 {
		t.Errorf("a server that has just started answers %d for a blocked key", code)
	}
	o.eventually("the block is removed", func() bool {
		code, _, _ := runProgram(t, "", "keys", "clear", "user:7", "--http", o.at[1])
		return code == 0
	})
	o.eventually("the guard lets the key go", func() bool { return !o.guard.Throttled("user:7") })
}
