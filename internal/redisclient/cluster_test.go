package redisclient_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// A node that accepts connections and is silent takes only a part of the time for the map of slots, whichever node
// go-redis asks first.
func TestASilentNodeOfACluster(t *testing.T) {
	ctx := t.Context()
	node := streamtest.OwnClusterOfOne(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer silent.Close()
	var asked atomic.Bool
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			asked.Store(true)
			defer c.Close()
		}
	}()
	for !asked.Load() { // go-redis asks in a random order
		c := redisclient.NewCluster(&redis.ClusterOptions{Addrs: []string{silent.Addr().String(), node.Addr()},
			DialerRetries: 1, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		testkit.Must(t, c.Set(within, "key", 1, 0).Err())
		cancel()
		testkit.Must(t, c.Close())
	}
	node.Pause()
	c := redisclient.NewCluster(&redis.ClusterOptions{Addrs: []string{node.Addr()}, DialerRetries: 1,
		ContextTimeoutEnabled: true})
	defer c.Close()
	within, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := c.Get(within, "key").Err(); err == nil || strings.Count(err.Error(), node.Addr()) != 1 {
		t.Errorf("the error of a node that does not answer is %v", err)
	}
}
