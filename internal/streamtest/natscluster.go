package streamtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// NATSCluster is three processes of nats-server that share JetStream, for one test. Its methods may be called from
// any goroutine.
type NATSCluster struct {
	t       testing.TB
	servers [3]*Server
}

// OwnNATSCluster starts a cluster for this test alone and returns when it has a leader. It ends with the test.
func OwnNATSCluster(t testing.TB) *NATSCluster {
	t.Helper()
	c := &NATSCluster{t: t}
	var routes []string
	for range c.servers { // each must know the addresses of the others before any of them listens
		routes = append(routes, "nats://"+testkit.FreeAddr(t))
	}
	for i := range c.servers {
		c.servers[i] = natsServer(t, "--name", fmt.Sprintf("n%d", i), "--cluster_name", "test", "--cluster", routes[i],
			"--routes", strings.Join(routes, ","))
	}
	for i := range c.servers {
		c.Start(i)
	}
	c.AwaitLeader()
	return c
}

// URL names all servers, in the form that a client accepts.
func (c *NATSCluster) URL() string {
	var list []string
	for _, s := range c.servers {
		list = append(list, s.URL())
	}
	return strings.Join(list, ",")
}

// Start starts server i, the first time or again, on the same ports and store, and returns when it listens. It
// answers JetStream requests when most of the servers run.
func (c *NATSCluster) Start(i int) { c.t.Helper(); c.servers[i].Start() }

// Stop ends server i as SIGTERM does and returns when it has ended; its store stays.
func (c *NATSCluster) Stop(i int) { c.t.Helper(); c.servers[i].Stop() }

// Kill ends server i by SIGKILL and returns when it has ended.
func (c *NATSCluster) Kill(i int) { c.t.Helper(); c.servers[i].Kill() }

// AwaitLeader waits until the running servers have a leader of JetStream: only the leader answers requests about the
// account.
func (c *NATSCluster) AwaitLeader() {
	c.t.Helper()
	c.ask("the NATS cluster has a leader", func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.AccountInfo(ctx)
		return err
	})
}

// LeaderOf waits until a stream has a leader and returns the index of that server.
func (c *NATSCluster) LeaderOf(stream string) (leader int) {
	c.t.Helper()
	c.ask("the stream "+stream+" has a leader", func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		cluster := s.CachedInfo().Cluster
		if leader = slices.Index([]string{"n0", "n1", "n2"}, cluster.Leader); leader < 0 {
			return fmt.Errorf("it is %q", cluster.Leader)
		}
		return nil
	})
	return leader
}

func (c *NATSCluster) ask(what string, do func(context.Context, jetstream.JetStream) error) {
	c.t.Helper()
	nc, err := nats.Connect(c.URL(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond))
	testkit.Must(c.t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	testkit.Must(c.t, err)
	Eventually(c.t, what, func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := do(ctx, js)
		return err == nil, fmt.Sprint(err)
	})
}

// natsServer is a server with JetStream that has not started. It is this test program, which contains the code of
// nats-server.
func natsServer(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, os.Args[0], "nats")
	s.env = []string{isNATSServer + "=1"}
	s.args = append(args, "--addr", "127.0.0.1", "--port", strconv.Itoa(s.port), "--jetstream", "--store_dir", s.dir)
	return s
}

// isNATSServer is a variable that makes a test program that runs Main act as nats-server, with its arguments.
const isNATSServer = "STREAMCOUNTER_TEST_IS_NATS_SERVER"

func runNATSServer() error {
	opts, err := server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ExitOnError), os.Args[1:], nil, nil, nil)
	if err != nil {
		return err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
