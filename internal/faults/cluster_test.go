package faults

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// TestCluster does to a Cluster under load what operators do to Clusters, and lets a master die. It is not parallel:
// other tests would take the time in which the Cluster must answer.
func TestCluster(t *testing.T) {
	c := streamtest.Cluster(t)
	t.Run("slots move", func(t *testing.T) { slotsMove(t, c) })
	t.Run("a master dies", func(t *testing.T) { aMasterDies(t, c) })
}

// onCluster starts a server and a worker under a prefix of their own, and the load on them.
func onCluster(t *testing.T, c *streamtest.RedisCluster, seed uint64) (d *driver, stop func()) {
	t.Helper()
	s := &system{t: t, nats: streamtest.OwnNATS(t), keys: streamtest.Keys(t, 16)}
	s.producer = func() redis.UniversalClient {
		client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true,
			DialerRetries: 1})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	s.admin = s.producer()
	s.start(rulesIn(0), c.URL(), c.URL())
	d = &driver{s: s, record: newRecord()}
	return d, d.start(seed)
}

// Slots of busy partitions move to other masters while events are appended, workers fold and checks are sent: nothing
// is lost and nothing is counted twice.
func slotsMove(t *testing.T, c *streamtest.RedisCluster) {
	d, stop := onCluster(t, c, 1)
	streamtest.Eventually(t, "each kind of load had an answer", d.loaded)
	for p := range 4 {
		slot, steps := c.Slot(d.s.keys.Events(p)), 0
		c.Migrate(slot, c.OtherMaster(slot), func(int) {
			if steps++; steps%20 == 1 { // one of these steps is before the first key
				d.more("events are taken while a slot moves", 50)
			}
			if p == 0 && steps == 2 { // the keys of the slot are on two nodes
				streamtest.Eventually(t, "a worker meets the moving slot for longer than its client waits",
					func() (bool, string) { return strings.Contains(d.s.work[0].Log(), "TRYAGAIN"), "it does not" })
			}
		})
	}
	d.more("events are taken after the moves", 500)
	stop()
	v := d.verifyCluster()
	if lost := v.lost(); lost != 0 {
		t.Errorf("%d acknowledged events are lost", lost)
	}
	v.verifyGranted()
	v.end()
}

// A master dies with acknowledged writes that no replica has. These writes are lost as a whole: counts, acks and
// outbox are consistent at the new master.
func aMasterDies(t *testing.T, c *streamtest.RedisCluster) {
	d, stop := onCluster(t, c, 2)
	streamtest.Eventually(t, "each kind of load had an answer", d.loaded)
	slot := c.Slot(d.s.keys.Events(0))
	resume := c.CutReplicaOf(slot)
	// Another prefix starts now: the new master will have neither its streams nor its groups, but its workers and
	// producers go on.
	young, stopYoung := onCluster(t, c, 3)
	young.more("the young prefix has a load", 200)
	d.more("events are taken that no replica has", 500)
	old := c.KillMasterOf(slot)
	resume()
	c.AwaitNewMaster(slot, old)
	d.more("events are taken by the new master", 500)
	young.more("events of the young prefix are taken by the new master", 500)
	stop()
	stopYoung()
	v := d.verifyCluster()
	lost := v.lost()
	t.Logf("%d events acknowledged, %d of them lost; of the young prefix %d lost", numbers(d.record.acked), lost,
		young.verifyCluster().lost())
	if lost == 0 {
		t.Error("nothing was lost: the replica was not cut off, so nothing was tested")
	}
	v.end()
	c.Revive() // as replicas, which bring no data back
	clear(d.record.excused)
	if again := d.verifyCluster().lost(); again != lost {
		t.Errorf("after the old master came back %d events are lost, before %d", again, lost)
	}
}

// verifyCluster waits until everything is at rest. It compares what is counted with what is stored, and who is
// throttled with what is counted.
func (d *driver) verifyCluster() *verdict {
	t := d.s.t
	t.Helper()
	d.s.drained()
	v := &verdict{t: t, rec: d.record, tap: &tap{}, logs: d.s.logs()}
	v.verifyStored(d.s)
	throttled := map[string]bool{}
	for k, err := range counters.New(d.s.admin, d.s.keys).Throttled(context.Background()) {
		testkit.Must(t, err)
		throttled[k.Key] = true
	}
	full := v.full()
	for key := range v.logs {
		if !falls(key) && throttled[key] != full[key] {
			v.fail(key, "%s: throttled %v, its count says %v", key, throttled[key], full[key])
		}
	}
	return v
}

// verifyStored: every stored event is counted, and no other event is. A count and its acknowledgement are written
// together, so a failover loses both or none.
func (v *verdict) verifyStored(s *system) {
	v.t.Helper()
	stored := map[string]map[int64]bool{}
	for p := range s.keys.Partitions {
		list, err := s.admin.XRange(context.Background(), s.keys.Events(p), "-", "+").Result()
		testkit.Must(v.t, err)
		for _, m := range list {
			note(stored, eventOf(m.Values["key"].(string), number(v.t, m.Values["count"])))
		}
	}
	for key, entries := range v.logs {
		counted := map[int64]bool{}
		for _, e := range entries {
			if t := v.rec.touched[key][e.count]; limitOf(key) == 0 && (t == nil || !t.check) {
				counted[e.count] = true
			}
		}
		if !maps.Equal(counted, stored[key]) {
			v.fail(key, "%s: %d events are counted, %d are in the stream", key, len(counted), len(stored[key]))
		}
	}
	for key := range stored {
		if v.logs[key] == nil {
			v.fail(key, "%s is in the stream and has no count", key)
		}
	}
}

// lost verifies the events, but excuses those that were acknowledged and are not counted. It returns their number.
func (v *verdict) lost() (lost int) {
	v.t.Helper()
	for key, numbers := range v.rec.acked {
		counted := map[int64]bool{}
		for _, e := range v.logs[key] {
			counted[e.count] = true
		}
		for n := range numbers {
			if !counted[n] {
				lost++
				note(v.rec.excused, eventOf(key, n))
			}
		}
	}
	v.verifyEvents()
	v.verifyOnce()
	return lost
}

// verifyGranted: each granted check is charged.
func (v *verdict) verifyGranted() {
	v.t.Helper()
	for key, allowed := range v.rec.allowed {
		if charged := v.charged(key); charged < allowed {
			v.fail(key, "%s: %d units were charged, %d were granted", key, charged, allowed)
		}
	}
}

// verifyOnce: a key that is asked for once is charged once at most.
func (v *verdict) verifyOnce() {
	v.t.Helper()
	for key := range v.logs {
		if charged := v.charged(key); strings.HasPrefix(key, "c:once:") && charged > 1 {
			v.fail(key, "%s was asked for once and charged %d times", key, charged)
		}
	}
}

// more waits until n more events are acknowledged.
func (d *driver) more(what string, n int64) {
	d.s.t.Helper()
	from := d.events.Load()
	streamtest.Eventually(d.s.t, what, func() (bool, string) {
		now := d.events.Load() - from
		return now >= n, fmt.Sprint(now)
	})
}

// TestSentinelFailover kills a master under load while its replica is away, and lets a Sentinel promote the replica.
// Then the state must be consistent: nothing is counted twice, no refused request is counted, and every total adds up.
// The test measures how much asynchronous replication lost. With min-replicas-to-write the master stops taking writes
// once its replica is silent, which bounds the loss.
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
