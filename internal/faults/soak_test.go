package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// The GOMEMLIMIT of each process, and the memory that it may have in addition: the
// limit does not count the pages of the program's own file.
const (
	soakLimit  = 64 << 20
	soakMargin = 32 << 20
	// soakGrowth is how much more the last third of a run may hold than the first.
	// A process that kept 20 bytes of each of 5 million keys would hold 66 MB more,
	// and pass the limit.
	soakGrowth = 6 << 20
)

// Nearly all keys are small and gone within seconds, so that Redis holds few of
// them at any time; some have a log, and some cross their limit and fall again.
const soakRules = `
rules:
  - {name: crossing, match: "x:*", windows: [{limit: 2, per: 5s}], alerts: [50%], hold: 1s}
  - {name: logged, match: "l:*", windows: [{limit: 100, per: 5s}], alerts: [80%]}
  - {name: estimated, match: "p:*", algorithm: sliding-counter, windows: [{limit: 100, per: 5s}], on_error: local}
  - {name: small, match: "*", algorithm: fixed-window, windows: [{limit: 100, per: 5s}]}
`

// TestSoak counts KEYS keys that come once, by events, and as many others by
// checks, and sees that no process grows. SOAK names the folder of its table.
func TestSoak(t *testing.T) {
	keys := setting(t, "KEYS", 0)
	if keys == 0 {
		t.Skip("not tested that memory stays bounded over millions of keys: make soak KEYS=10000000")
	}
	if keys < 1_000_000 {
		t.Fatalf("KEYS=%d: want at least 1000000; before, a process still takes what it needs anyway", keys)
	}
	if runtime.GOOS != "linux" {
		t.Skip("resident memory is read from /proc")
	}
	dir := os.Getenv("SOAK")
	if dir == "" {
		dir = t.TempDir()
	}
	testkit.Must(t, os.MkdirAll(dir, 0o755))
	s := newSoak(t)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	s.drive(keys)
	streamtest.Eventually(t, 2*time.Minute, "everything is counted and published", s.idle)
	cancel()
	watching.Wait()

	counted := s.metric("streamcounter_events_folded_total") + s.metric("streamcounter_events_late_total")
	if counted != float64(keys) {
		t.Errorf("%.0f events counted of %d", counted, keys)
	}
	published := s.metric("streamcounter_transitions_total")
	if published == 0 {
		t.Error("no transitions: the soak proves less than it says")
	}
	t.Logf("%d keys by events, %d by checks, %.0f transitions published, %s", keys, keys, published,
		s.rows[len(s.rows)-1].at.Round(time.Second))
	if err := s.rows.write(filepath.Join(dir, "soak.csv"), s.names()); err != nil {
		t.Error(err)
	}
	t.Logf("table: %s", filepath.Join(dir, "soak.csv"))
	for i, name := range s.names() {
		first, last, most := s.rows.thirds(i, 2*keys)
		t.Logf("%-8s MiB resident: %4d in the first third, %4d in the last, %4d at most; %+.1f bytes a key", name,
			first>>20, last>>20, most>>20, s.rows.slope(i))
		if last-first > soakGrowth {
			t.Errorf("%s grew by %d MiB from the first third to the last, %d are allowed", name, (last-first)>>20,
				soakGrowth>>20)
		}
		if most > soakLimit+soakMargin {
			t.Errorf("%s held %d MiB, GOMEMLIMIT is %d", name, most>>20, soakLimit>>20)
		}
	}
}

// soak is the program's processes, and what they are given.
type soak struct {
	t      *testing.T
	redis  *redis.Client
	keys   *stream.Keys
	base   string   // of the server's HTTP
	admin  []string // of each worker's
	parts  []*part  // the server, then the workers
	done   atomic.Int64
	behind atomic.Bool // the workers are: wait with more
	rows   soakRows
}

func newSoak(t *testing.T) *soak {
	s := &soak{t: t}
	own, nats, program := streamtest.OwnRedis(t), streamtest.OwnNATS(t), streamtest.Build(t)
	s.redis = streamtest.Connect(t, own.Addr())
	s.keys = newKeys(t)
	file := testkit.WriteFile(t, "rules.yml", soakRules)
	t.Setenv("GOMEMLIMIT", fmt.Sprint(soakLimit)) // for those that are started from here on
	common := []string{"--redis", own.URL(), "--rules", file, "--partitions", "4", "--retention", "1m", "--log-level",
		"warn"}
	port := testkit.FreeAddr(t)
	s.base = "http://" + port
	s.parts = append(s.parts, newPart(t, program, append([]string{"serve", "--http", port, "--grpc", "",
		"--check-timeout", "5s"}, common...)...))
	for range 2 {
		port := testkit.FreeAddr(t)
		s.admin = append(s.admin, "http://"+port)
		s.parts = append(s.parts, newPart(t, program, append([]string{"work", "--nats", nats.URL(), "--http", port},
			common...)...))
	}
	for _, p := range s.parts {
		p.start()
	}
	for _, base := range append([]string{s.base}, s.admin...) {
		awaitReady(t, base)
	}
	return s
}

func (s *soak) names() []string { return []string{"serve", "work 1", "work 2"} }

const soakStep = 1000 // keys of events that are appended at a time, and as many are checked

// drive appends and asks, in step, until all keys were there.
func (s *soak) drive(keys uint64) {
	steps := make(chan uint64)
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			log, err := stream.NewLog(s.redis, s.keys, time.Minute)
			if err != nil {
				s.t.Error(err)
			}
			for from := range steps {
				n := min(soakStep, keys-from)
				s.append(log, from, n)
				s.ask(from, n)
				s.done.Add(int64(2 * n))
			}
		})
	}
	for from := uint64(0); from < keys && !s.t.Failed(); from += soakStep {
		for s.behind.Load() && pace(s.t.Context(), 10*time.Millisecond) {
		}
		steps <- from
	}
	close(steps)
	load.Wait()
}

// soakKey is a key that comes once. One of 400 crosses its limit at once.
func soakKey(what string, n uint64) (key string, cost int64) {
	switch {
	case n%400 == 0:
		return fmt.Sprintf("x:%s:%d", what, n), 2
	case n%100 < 10:
		return fmt.Sprintf("l:%s:%d", what, n), 1
	case n%100 < 20:
		return fmt.Sprintf("p:%s:%d", what, n), 1
	}
	return fmt.Sprintf("%s:%d", what, n), 1
}

func (s *soak) append(log *stream.Log, from, n uint64) {
	events := make([]api.Event, n)
	for i := range events {
		at := from + uint64(i)
		events[i].Key, events[i].Count = soakKey("event", at)
		if at%50 == 7 { // and some have producers that would send them again
			events[i].ID = fmt.Sprint(at)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out := log.Append(ctx, events); out.Err != nil {
		s.t.Errorf("%d of %d events appended: %v", out.Appended, n, out.Err)
	}
}

func (s *soak) ask(from, n uint64) {
	for ; n > 0 && !s.t.Failed(); from, n = from+min(n, 100), n-min(n, 100) {
		var checks []string
		for i := range min(n, 100) {
			key, cost := soakKey("check", from+i)
			checks = append(checks, fmt.Sprintf(`{"key":%q,"cost":%d}`, key, cost))
		}
		body := `{"each":true,"checks":[` + strings.Join(checks, ",") + `]}`
		answer, err := s.fetch(http.NewRequest(http.MethodPost, s.base+"/v1/check", strings.NewReader(body)))
		if got := strings.Count(answer, `"allowed":true`); err != nil || got != int(min(n, 100)) ||
			strings.Count(answer, `"source":"redis"`) != got {
			s.t.Errorf("checks of %d keys from %d on: %v, %d allowed: %.300s", min(n, 100), from, err, got, answer)
		}
	}
}
