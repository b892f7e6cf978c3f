package faults

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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
	work   []*part
	serve  *part
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
	s.serve = newPart(s.t, program, append([]string{"serve", "--redis", urls[0], "--http", port, "--grpc", s.grpc},
		common...)...)
	for _, url := range urls[1:] {
		s.work = append(s.work, newPart(s.t, program, append([]string{"work", "--redis", url, "--nats", s.nats.URL(),
			"--http", "127.0.0.1:0", "--min-idle", "1s", "--batch", "200"}, common...)...))
	}
	for _, p := range s.parts() {
		p.start()
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

func (s *system) parts() []*part { return append([]*part{s.serve}, s.work...) }

// part is one process of the program, started again whenever it is to run.
type part struct {
	t       testing.TB
	program string
	args    []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{}
	output bytes.Buffer // of all its lives
	ready  bool         // it has said so in this life
	killed bool         // by us
}

func newPart(t testing.TB, program string, args ...string) *part {
	p := &part{t: t, program: program, args: args}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			// A temporary file, and not one of t.TempDir: it outlives the test.
			path := filepath.Join(os.TempDir(), "streamcounter-faults-"+args[0]+"-"+rand.Text()+".log")
			t.Logf("what %s said: %s, %v", args[0], path, os.WriteFile(path, p.output.Bytes(), 0o600))
		}
	})
	return p
}

func (p *part) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = p.ready || bytes.Contains(b, []byte(`"msg":"ready"`))
	return p.output.Write(b)
}

// start starts it, and again where it gives up before it is ready, as whoever runs
// it does: a start needs a Redis that answers.
func (p *part) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = false
	p.launch()
}

// launch is called with mu held.
func (p *part) launch() {
	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	done := make(chan struct{})
	p.cmd, p.done, p.ready = cmd, done, false
	go func() {
		_ = cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cmd == cmd && !p.ready && !p.killed {
			p.launch()
		}
		close(done)
	}()
}

// said reports whether a text is in its log.
func (p *part) said(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.output.Bytes(), []byte(text))
}

// running reports whether it lives.
func (p *part) running() bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// freeze stops it where it stands; it goes on by thaw.
func (p *part) freeze() { p.with(streamtest.Suspend) }
func (p *part) thaw()   { p.with(streamtest.Resume) }

func (p *part) with(do func(*os.Process) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = do(p.cmd.Process)
	}
}

func (p *part) kill() {
	p.mu.Lock()
	p.killed = true
	done := p.done
	p.mu.Unlock()
	p.with((*os.Process).Kill)
	if done != nil {
		<-done
	}
}

// TestMain keeps go-redis quiet: that connections fail is what is done here.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	streamtest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
