package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
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
