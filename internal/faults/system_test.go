package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// Limits of the rules below.
const (
	eventLimit = 2000
	checkLimit = 50
	checkPer   = 2 * time.Second
)

// The windows of a day keep every entry for the verification.
var rules = fmt.Sprintf(`
rules:
  - name: events
    match: "e:*"
    windows: [{limit: %[1]d, per: 24h}]
    alerts: [50%%, 80%%]
    hold: 0s
  - name: repeated
    match: "r:*"
    windows: [{limit: %[1]d, per: 24h}]
    alerts: [50%%, 80%%]
    hold: 0s
  - name: checks
    match: "c:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 200ms
    on_error: deny
  - name: bursts
    match: "b:*"
    windows: [{limit: %[4]d, per: %[5]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
  - name: operated
    match: "o:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
    on_error: deny
  - name: again
    match: "i:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
    on_error: deny
  - name: units
    match: "t*:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
  - name: slots
    match: "s:*"
    windows: [{limit: %[6]d, in_flight: %[7]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
`, eventLimit, checkLimit, checkPer, burstLimit, burstPer, slotLimit, slotFor)

// system is all of it: servers, proxies, and the program's processes.
type system struct {
	t      testing.TB
	redis  *streamtest.Server
	clock  *streamtest.ServerClock // Redis's; nil where it has the system's
	nats   *streamtest.Server
	admin  redis.UniversalClient // straight to Redis, for faults and the verification
	keys   *stream.Keys
	toWork []*streamtest.Proxy // one per worker
	toAsk  *streamtest.Proxy   // the server's
	toAdd  *streamtest.Proxy   // the producer's
	work   []*streamtest.Server
	serve  *streamtest.Server
	base   string // of the server's HTTP
	grpc   string // address of the server's gRPC
	// producer opens the client that a producer appends with.
	producer func() redis.UniversalClient
	file     string // of the rules
	// minutes that the run is to last, 0 for a short one.
	minutes uint64
}

func newKeys(t testing.TB) *stream.Keys {
	t.Helper()
	keys, err := stream.NewKeys("sc", 4)
	testkit.Must(t, err)
	return keys
}

func newSystem(t testing.TB, workers int) *system {
	t.Helper()
	s := &system{t: t, nats: streamtest.OwnNATS(t)}
	s.redis, s.clock = streamtest.OwnRedisWithClock(t, "--appendonly", "yes", "--appendfsync", "always")
	s.admin = streamtest.Connect(t, s.redis.Addr())
	s.keys = newKeys(t)
	s.toAsk, s.toAdd = streamtest.NewProxy(t, s.redis.Addr()), streamtest.NewProxy(t, s.redis.Addr())
	s.producer = func() redis.UniversalClient { return streamtest.Connect(t, s.toAdd.Addr) }
	urls := []string{"redis://" + s.toAsk.Addr}
	for range workers {
		p := streamtest.NewProxy(t, s.redis.Addr())
		s.toWork, urls = append(s.toWork, p), append(urls, "redis://"+p.Addr)
	}
	s.start(rulesIn(0), urls...)
	return s
}

// start starts the program's processes, each with its URL of Redis: the server, and then the workers. It waits for the
// server.
func (s *system) start(rules string, urls ...string) {
	s.t.Helper()
	s.file = testkit.WriteFile(s.t, "rules.yml", rules)
	program, port := streamtest.Build(s.t), testkit.FreeAddr(s.t)
	s.base, s.grpc = "http://"+port, testkit.FreeAddr(s.t)
	common := []string{"--rules", s.file, "--prefix", s.keys.Prefix, "--partitions",
		fmt.Sprint(s.keys.Partitions)}
	process := func(args ...string) *streamtest.Server {
		p := streamtest.Process(s.t, program, `"msg":"ready"`, append(args, common...)...)
		s.t.Cleanup(func() { s.keepLog(args[0], p) })
		p.Start()
		return p
	}
	s.serve = process("serve", "--redis", urls[0], "--http", port, "--grpc", s.grpc)
	for _, url := range urls[1:] {
		s.work = append(s.work, process("work", "--redis", url, "--nats", s.nats.URL(), "--http", "127.0.0.1:0",
			"--min-idle", "1s", "--batch", "200"))
	}
	streamtest.Eventually(s.t, "the server is ready", func() (bool, string) {
		resp, err := http.Get(s.base + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
}

func (s *system) parts() []*streamtest.Server {
	return append([]*streamtest.Server{s.serve}, s.work...)
}

// keepLog ends a process. If the test has failed, it keeps the log in a file that outlives the test.
func (s *system) keepLog(name string, p *streamtest.Server) {
	if p.Kill(); s.t.Failed() {
		path := filepath.Join(os.TempDir(), "streamcounter-faults-"+name+"-"+rand.Text()+".log")
		s.t.Logf("what %s said: %s, %v", name, path, os.WriteFile(path, []byte(p.Log()), 0o600))
	}
}

// TestMain keeps go-redis quiet: that connections fail is what is done here.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	streamtest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
