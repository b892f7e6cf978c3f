package faults

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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
    match: "t:*"
    windows: [{limit: %[2]d, per: %[3]s}, {limit: 1000000000, per: 24h}]
    hold: 0s
  - name: over
    match: "to:*"
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
	redis  *streamtest.RedisProcess
	clock  *streamtest.ServerClock // Redis's; nil where it has the system's
	nats   *streamtest.NATSServer
	admin  *redis.Client // straight to Redis, for faults and the verification
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
	s.file = testkit.WriteFile(t, "rules.yml", rulesIn(0))
	program := streamtest.Build(t)
	s.toAsk, s.toAdd = streamtest.NewProxy(t, s.redis.Addr()), streamtest.NewProxy(t, s.redis.Addr())
	s.producer = func() redis.UniversalClient { return streamtest.Connect(t, s.toAdd.Addr) }
	common := []string{"--rules", s.file, "--partitions", "4", "--log-level", "info"}
	port := testkit.FreeAddr(t)
	s.base, s.grpc = "http://"+port, testkit.FreeAddr(t)
	s.serve = newPart(t, program, append([]string{"serve", "--redis", "redis://" + s.toAsk.Addr, "--http", port,
		"--grpc", s.grpc}, common...)...)
	for range workers {
		p := streamtest.NewProxy(t, s.redis.Addr())
		s.toWork = append(s.toWork, p)
		s.work = append(s.work, newPart(t, program, append([]string{"work", "--redis", "redis://" + p.Addr, "--nats",
			s.nats.URL(), "--http", "127.0.0.1:0", "--min-idle", "1s", "--batch", "200"}, common...)...))
	}
	s.start()
	return s
}

// start starts the program's processes and waits for the server.
func (s *system) start() {
	s.t.Helper()
	for _, p := range append([]*part{s.serve}, s.work...) {
		p.start()
	}
	awaitReady(s.t, s.base)
}

// awaitReady waits until a process says that it is ready.
func awaitReady(t testing.TB, base string) {
	t.Helper()
	streamtest.Eventually(t, time.Minute, base+" is ready", func() (bool, string) {
		resp, err := http.Get(base + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
}

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
			t.Logf("what %s said: %s", args[0], keep(t, args[0], p.output.Bytes()))
		}
	})
	return p
}

// keep writes a process's output where it outlives the test.
func keep(t testing.TB, name string, output []byte) (path string) {
	f, err := os.CreateTemp("", "streamcounter-faults-"+name+"-*.log")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer f.Close()
	if _, err := f.Write(output); err != nil {
		t.Error(err)
	}
	return f.Name()
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
