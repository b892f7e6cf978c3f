package streamtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// NATSCluster is three processes of nats-server that share JetStream, of one
// test's own. Its methods may be called from any goroutine.
type NATSCluster struct {
	t           testing.TB
	bin         string
	client      [3]int // ports
	clusterPort [3]int
	dirs        [3]string

	mu   sync.Mutex
	cmds [3]*exec.Cmd     // nil while it does not run
	gone [3]chan struct{} // closed when the process has ended
}

// OwnNATSCluster builds nats-server, of the version that this module needs, starts
// a cluster for this test alone and returns when it has a leader. It ends with the test.
func OwnNATSCluster(t testing.TB) *NATSCluster {
	t.Helper()
	c := &NATSCluster{t: t, bin: filepath.Join(t.TempDir(), "nats-server")}
	if out, err := exec.Command("go", "build", "-o", c.bin,
		"github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("building nats-server: %v\n%s", err, out)
	}
	for i := range c.cmds { // each must know where the others listen before any does
		c.client[i], c.clusterPort[i], c.dirs[i] = testkit.FreePort(t), testkit.FreePort(t), t.TempDir()
	}
	t.Cleanup(func() {
		for i := range c.cmds {
			c.end(i, syscall.SIGKILL)
			if log, err := os.ReadFile(c.log(i)); err == nil && t.Failed() {
				t.Logf("nats-server %d: …%s", i, log[max(0, len(log)-2000):])
			}
		}
	})
	for i := range c.cmds {
		c.Start(i)
	}
	c.AwaitLeader()
	return c
}

func (c *NATSCluster) log(i int) string { return filepath.Join(c.dirs[i], "log") }

// URL names all servers, as a client takes them.
func (c *NATSCluster) URL() string {
	var list []string
	for _, p := range c.client {
		list = append(list, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	return strings.Join(list, ",")
}

// Start starts server i, the first time or again, on the same ports and store, and
// returns when it listens: with JetStream it answers when most of them run.
func (c *NATSCluster) Start(i int) {
	c.t.Helper()
	var routes []string
	for _, p := range c.clusterPort {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	cmd := exec.Command(c.bin, "--name", fmt.Sprintf("n%d", i), "--addr", "127.0.0.1", "--port",
		strconv.Itoa(c.client[i]),
		"--jetstream", "--store_dir", c.dirs[i], "--log", c.log(i),
		"--cluster_name", "test", "--cluster", routes[i], "--routes", strings.Join(routes, ","))
	cmd.SysProcAttr = dieWithParent()
	gone := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmds[i] != nil {
		c.t.Errorf("start NATS server %d: it is running already", i)
		return
	}
	if err := launch(cmd, gone); err != nil {
		c.t.Errorf("start NATS server %d: %v", i, err)
		return
	}
	c.cmds[i], c.gone[i] = cmd, gone
	if err := await(fmt.Sprintf("127.0.0.1:%d", c.client[i]), gone, func(net.Conn) error { return nil }); err != nil {
		c.t.Error(err)
	}
}

// Stop ends server i as SIGTERM does and returns when it has gone; its store stays.
func (c *NATSCluster) Stop(i int) { c.end(i, syscall.SIGTERM) }

// Kill ends server i by SIGKILL and returns when it has gone.
func (c *NATSCluster) Kill(i int) { c.end(i, syscall.SIGKILL) }

func (c *NATSCluster) end(i int, how syscall.Signal) {
	c.mu.Lock()
	cmd, gone := c.cmds[i], c.gone[i]
	c.cmds[i] = nil
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Errorf("ending NATS server %d: %v", i, err)
	}
	<-gone
}

// AwaitLeader waits until the running servers have who leads JetStream: nobody
// else answers what is asked of the account.
func (c *NATSCluster) AwaitLeader() {
	c.t.Helper()
	c.ask("the NATS cluster has a leader", func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.AccountInfo(ctx)
		return err
	})
}

// LeaderOf waits until a stream has a leader and gives which server it is.
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
	if err != nil {
		c.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		c.t.Fatal(err)
	}
	Eventually(c.t, time.Minute, what, func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := do(ctx, js)
		return err == nil, fmt.Sprint(err)
	})
}
