package streamtest

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSCluster is three embedded NATS servers that share JetStream, of one test's
// own. Its methods may be called from any goroutine.
type NATSCluster struct {
	t      testing.TB
	client [3]int // ports
	routes []*url.URL
	dirs   [3]string

	mu      sync.Mutex
	servers [3]*server.Server // nil while stopped
}

// OwnNATSCluster starts a cluster for this test alone and returns when it has a
// leader. It ends with the test.
func OwnNATSCluster(t testing.TB) *NATSCluster {
	t.Helper()
	c := &NATSCluster{t: t}
	// Each must know where the others listen before any does.
	var held []net.Listener
	port := func() int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
		return l.Addr().(*net.TCPAddr).Port
	}
	for i := range c.servers {
		c.client[i], c.dirs[i] = port(), t.TempDir()
		c.routes = append(c.routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port())})
	}
	for _, l := range held {
		_ = l.Close()
	}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.servers {
			if s != nil {
				stopNATS(s)
			}
		}
	})
	for i := range c.servers {
		c.Start(i)
	}
	c.AwaitLeader()
	return c
}

// URL names all servers, as a client takes them.
func (c *NATSCluster) URL() string {
	var list []string
	for _, p := range c.client {
		list = append(list, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	return strings.Join(list, ",")
}

// Start starts server i, the first time or again, on the same ports and store.
func (c *NATSCluster) Start(i int) {
	c.t.Helper()
	u := c.routes[i]
	var port int
	if _, err := fmt.Sscan(u.Port(), &port); err != nil {
		c.t.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: c.client[i], NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: c.dirs[i],
		Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}, Routes: c.routes,
	})
	if err != nil {
		c.t.Errorf("make NATS server %d: %v", i, err)
		return
	}
	s.Start()
	if !s.ReadyForConnections(startWithin) {
		c.t.Errorf("NATS server %d is not ready", i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[i] = s
}

// Stop ends server i and returns when it has gone; its store stays.
func (c *NATSCluster) Stop(i int) {
	c.mu.Lock()
	s := c.servers[i]
	c.servers[i] = nil
	c.mu.Unlock()
	if s != nil {
		stopNATS(s)
	}
}

// AwaitLeader waits until the running servers agree on who leads JetStream.
func (c *NATSCluster) AwaitLeader() {
	c.t.Helper()
	Eventually(c.t, time.Minute, "the NATS cluster has a leader", func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, s := range c.servers {
			if s != nil && s.JetStreamIsLeader() {
				return true, fmt.Sprint(i)
			}
		}
		return false, "none leads"
	})
}

// LeaderOf gives the server that leads a stream, -1 where none does.
func (c *NATSCluster) LeaderOf(stream string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.servers {
		if s != nil && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}
