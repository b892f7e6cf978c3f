package stream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// connectCluster returns a client like that of the commands.
func connectCluster(t testing.TB, c *streamtest.RedisCluster, change ...func(
	*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true, DisableIdentity: true,
		DialerRetries: 1, ReadTimeout: 5 * time.Second}
	for _, f := range change {
		f(o)
	}
	client := stream.NewCluster(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestCluster(t *testing.T) {
	c := streamtest.Cluster(t)
	t.Run("nothing is sent twice", func(t *testing.T) { nothingIsSentTwice(t, c) })
	t.Run("redirects are followed", func(t *testing.T) { redirectsAreFollowed(t, c) })
	t.Run("a new master is found", func(t *testing.T) { aNewMasterIsFound(t, c) }) // the last: it kills
}

// If a reply is lost, the command may have been executed. This is also so on a Cluster,
// where go-redis would send it again.
func nothingIsSentTwice(t *testing.T, c *streamtest.RedisCluster) {
	var mu sync.Mutex
	proxies := map[string]*streamtest.Proxy{} // node → the proxy before it
	client := connectCluster(t, c, func(o *redis.ClusterOptions) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if proxies[addr] == nil {
				proxies[addr] = streamtest.NewProxy(t, addr)
			}
			var d net.Dialer
			return d.DialContext(ctx, network, proxies[addr].Addr)
		}
	})
	ctx, k := t.Context(), newKeys(t, 16)
	log := newLog(t, client, k, time.Hour)
	list := events(64)
	testkit.Must(t, log.Append(ctx, list).Err) // every node has a connection now
	before := stored(t, client, k)
	node := c.MasterOf(c.Slot(k.Events(0)))

	proxies[node].LoseReplies(1)
	out := log.Append(ctx, list)
	if !errors.Is(out.Err, api.ErrOutcomeUnknown) || len(out.Unknown) == 0 || len(out.Refused) != 0 {
		t.Errorf("with a reply lost: %d unknown, %d refused, error %v", len(out.Unknown), len(out.Refused), out.Err)
	}
	for key, counts := range stored(t, client, k) {
		if len(counts) != len(before[key])+1 {
			t.Errorf("key %s has %d entries after %d were appended", key, len(counts), len(before[key])+1)
		}
	}

	key := k.Events(0)
	n := client.XLen(ctx, key).Val()
	proxies[node].LoseReplies(1)
	err := client.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"key", "single"}}).Err()
	if after := client.XLen(ctx, key).Val(); err == nil || after != n+1 {
		t.Errorf("one command with its reply lost: error %v, %d entries more, want an error and 1", err, after-n)
	}
}

// While a slot moves, single commands and pipelines are sent to the nodes of their
// keys, and a script whose keys are on two nodes waits.
func redirectsAreFollowed(t *testing.T, c *streamtest.RedisCluster) {
	client := connectCluster(t, c)
	ctx, k := t.Context(), newKeys(t, 16)
	log := newLog(t, client, k, time.Hour)
	testkit.Must(t, log.Append(ctx, events(64)).Err)
	const p = 5
	slot := c.Slot(k.Events(p))
	for i := range 15 {
		testkit.Must(t, client.Set(ctx, k.Counter(p, "fixed", fmt.Sprint(i)), "1", time.Hour).Err())
	}
	lock := func() {
		r := lua.NewCaller(client).Call(ctx, "lock", nil, []string{k.Relay(p)}, "me", 60_000)
		if testkit.Must(t, r.Err()); r.Integer() != 1 {
			t.Error("the lock is gone")
		}
	}
	lock()
	asked := 0
	c.Migrate(slot, c.OtherMaster(slot), func(int) {
		out := log.Append(ctx, events(64)) // every slot, this one too
		testkit.Must(t, out.Err)
		asked++
		lock() // one key: it is sent again with ASKING
		for i := range 15 {
			testkit.Must(t, client.Get(ctx, k.Counter(p, "fixed", fmt.Sprint(i))).Err())
		}
		// The second counter does not exist: Redis cannot know on which node it would be.
		within, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		err := client.Eval(within, "return 1", []string{k.Events(p), k.Dead(p)}).Err()
		if !redis.IsTryAgainError(err) || redisclient.IsRefusal(err) {
			t.Errorf("a script with a key that is missing, while the slot moves: %v, want TRYAGAIN", err)
		}
	})
	testkit.Must(t, log.Append(ctx, events(64)).Err)
	for key, counts := range stored(t, client, k) {
		if len(counts) != asked+2 {
			t.Errorf("key %s has %d entries, %d were appended", key, len(counts), asked+2)
		}
	}
}

// A dead master sends no redirects. The client finds the new master anyway.
func aNewMasterIsFound(t *testing.T, c *streamtest.RedisCluster) {
	client := connectCluster(t, c)
	ctx, k := t.Context(), newKeys(t, 16)
	log := newLog(t, client, k, time.Hour)
	testkit.Must(t, log.Append(ctx, events(64)).Err)
	slot := c.Slot(k.Events(0))
	c.AwaitNewMaster(slot, c.KillMasterOf(slot))
	began := time.Now()
	streamtest.Eventually(t, "an append succeeds in all partitions", func() (bool, string) {
		out := log.Append(ctx, events(64))
		return out.Err == nil, fmt.Sprint(out.Err)
	})
	t.Logf("the client was right %v after the cluster was", time.Since(began).Round(time.Millisecond))
	c.AwaitWhole()
	began = time.Now()
	clocks, err := eventlog.Clocks(ctx, client, k)
	if err != nil || len(clocks) != 16 {
		t.Errorf("clocks of %d partitions, %v", len(clocks), err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
