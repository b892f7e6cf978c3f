package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
