package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
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
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.guard.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	within, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	testkit.Must(t, o.guard.Ready(within))
	return o
}

func (o *operated) startWork() {
	o.work = startProgram(o.t, "work", "--redis", o.redis, "--nats", o.nats, "--prefix", o.prefix,
		"--rules", o.rulesFile, "--http", fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(o.t)))
	o.work.until("ready")
}

func (o *operated) startServe(i int) {
	o.at[i] = fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(o.t))
	args := []string{"serve", "--redis", o.redis, "--prefix", o.prefix, "--rules", o.rulesFile, "--http", o.at[i],
		"--grpc", ""}
	if i == 0 { // the other has none
		args = append(args, "--nats", o.nats)
	}
	o.serve[i] = startProgram(o.t, args...)
	o.serve[i].until("ready")
}

// status returns the status with which a serve answers a check.
func (o *operated) status(i int, key string) int {
	o.t.Helper()
	code, _ := request(o.t, "GET", "http://"+o.at[i]+"/v1/check?key="+key, "")
	return code
}

func (o *operated) keys(i int, args ...string) string {
	o.t.Helper()
	code, out, errs := runProgram(o.t, "", append(append([]string{"keys"}, args...), "--http", o.at[i])...)
	if code != 0 {
		o.t.Fatalf("keys %v: %d %s", args, code, errs)
	}
	return out
}

// eventually waits until holds is true and returns how long that took.
func (o *operated) eventually(what string, holds func() bool) time.Duration {
	o.t.Helper()
	began := time.Now()
	streamtest.Eventually(o.t, 20*time.Second, what, func() (bool, string) { return holds(), "it is not so" })
	return time.Since(began)
}

// story blocks a key on the command line: guards and every server apply the block well within a second, also after
// restarts, and it ends at its time.
func (o *operated) story() {
	t := o.t
	out := o.keys(0, "block", "user:1", "--for", "1h", "--reason", "abuse")
	if !strings.Contains(out, "blocked until") {
		t.Error(out)
	}
	heard := o.eventually("the guard has the block", func() bool { return o.guard.Throttled("user:1") })
	known := o.eventually("the other server has the block", func() bool { return o.status(1, "user:1") == 429 })
	t.Logf("after the command: a guard had the block after %v, another server after %v", heard, heard+known)
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

	if out := o.keys(1, "clear", "user:1", "--reason", "settled"); !strings.Contains(out, "removed") {
		t.Error(out)
	}
	o.eventually("the guard lets the key go", func() bool { return !o.guard.Throttled("user:1") })
	o.eventually("the other server lets the key go", func() bool { return o.status(0, "user:1") == 200 })

	// A block that ends at a given time.
	began := time.Now()
	o.keys(0, "block", "user:2", "--for", "3s")
	o.eventually("the guard has the block", func() bool { return o.guard.Throttled("user:2") })
	o.eventually("the servers let the key go", func() bool { return o.status(0, "user:2") == 200 })
	o.eventually("the guard lets the key go", func() bool { return !o.guard.Throttled("user:2") })
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("a block for 3s ended after %v", took)
	}

	o.keys(0, "limit", "user:3", "2/1h", "--until", "2099-01-01")
	o.status(0, "user:3")
	o.status(0, "user:3")
	if code := o.status(0, "user:3"); code != 429 {
		t.Errorf("a third check under a limit of 2: %d", code)
	}
	o.eventually("the guard knows", func() bool { return o.guard.Throttled("user:3") })
	o.keys(0, "exempt", "user:3")
	o.eventually("the guard lets an exempt key go", func() bool { return !o.guard.Throttled("user:3") })

	out = o.keys(0, "history", "user:1") // server 0 has NATS
	if !strings.Contains(out, "removed, settled") || !strings.Contains(out, "blocked until") ||
		!strings.Contains(out, "released, rule override") {
		t.Errorf("history: %s", out)
	}
	if _, _, messages := runProgram(t, "", "keys", "history", "user:1", "--http", o.at[1]); !strings.Contains(messages,
		"left out: alerts and decisions: this server has no NATS") {
		t.Errorf("without NATS: %s", messages)
	}
	o.eventually("the other server knows the busiest keys", func() bool {
		return strings.Contains(o.keys(1, "top", "api"), "user:3  3")
	})
	o.eventually("the other server lists it", func() bool {
		out := o.keys(1, "overrides")
		return strings.Contains(out, "user:3  exempt") && !strings.Contains(out, "user:1")
	})
}

// On one server it works in the same way; there the tests of internal/counters and consumers cover the parts with the
// users of deploy/.
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
	o.story()

	// A replica takes over: its overrides are in force, in running processes and in those that start after that.
	o.keys(0, "block", "user:7", "--reason", "abuse")
	keys, err := stream.NewKeys(o.prefix, stream.DefaultPartitions)
	testkit.Must(t, err)
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
