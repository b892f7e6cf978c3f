package faults

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// TestSentinelFailover kills a master under load while its replica is away, and
// lets a Sentinel put the replica in its place. What is left must be consistent:
// nothing is counted twice, nothing that was refused is counted, every total adds
// up. What asynchronous replication lost is measured; with min-replicas-to-write
// the master stops taking writes once its replica is silent, which bounds it.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, bounds := range map[string][]string{
		"without bound":         nil,
		"min-replicas-to-write": {"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := failover(t, bounds)
			t.Logf("%d acknowledged events lost, whose replica had been away for 4s when the master died", lost)
			if bounds == nil && lost == 0 {
				t.Error("nothing was lost without a bound: the bound proves nothing")
			}
		})
	}
}

func failover(t *testing.T, bounds []string) (lost int) {
	master := streamtest.OwnRedis(t, bounds...)
	host, port, err := net.SplitHostPort(master.Addr())
	testkit.Must(t, err)
	// Without the bound: it has no replica of its own to wait for, once it is the master.
	replica := streamtest.OwnRedis(t, "--replicaof", host, port, "--repl-diskless-sync-delay", "0", "--appendonly",
		"yes", "--appendfsync", "always")
	s := &system{t: t, nats: streamtest.OwnNATS(t), keys: newKeys(t)}
	direct := streamtest.Connect(t, replica.Addr())
	streamtest.Eventually(t, "the replica follows", func() (bool, string) {
		info := direct.InfoMap(context.Background(), "replication").Val()["Replication"]
		return info["master_link_status"] == "up", fmt.Sprint(info)
	})
	sentinel := startSentinel(t, host, port)
	open := func() redis.UniversalClient {
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "counters", SentinelAddrs: []string{sentinel},
			MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: 2 * time.Second,
			DialerRetries: 1})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	s.producer = open
	s.admin = open()
	url := "redis+sentinel://" + sentinel + "/counters"
	s.start(rulesIn(0), url, url, url)

	d := &driver{s: s, record: newRecord()}
	stop := d.start(1)
	d.more("a load", 500)
	replica.Kill() // frozen, it would find what it missed in its socket
	pause.For(t.Context(), 4*time.Second)
	master.Kill()
	replica.Start()
	d.more("events are taken by the new master", 500)
	stop()
	s.drained()

	v := &verdict{t: t, rec: d.record, tap: &tap{}, logs: s.logs()}
	v.verifyStored(s)
	lost = v.lost()
	v.end()
	t.Logf("%d events acknowledged, %d of them lost; %d unknown", numbers(d.record.acked), lost,
		numbers(d.record.unknown))
	return lost
}

// startSentinel starts one that decides alone whether the master is down, and
// returns when it knows the replica.
func startSentinel(t *testing.T, host, port string) (addr string) {
	t.Helper()
	addr = streamtest.Sentinel(t, "port", fmt.Sprintf(
		"sentinel monitor counters %s %s 1\nsentinel down-after-milliseconds counters 1000\nsentinel "+
			"failover-timeout counters 5000\n",
		host, port))
	c := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer c.Close()
	streamtest.Eventually(t, "the Sentinel knows the replica", func() (bool, string) {
		list, err := c.Replicas(context.Background(), "counters").Result()
		return err == nil && len(list) == 1, fmt.Sprint(list, err)
	})
	return addr
}
