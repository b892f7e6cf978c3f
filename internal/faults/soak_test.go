package faults

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
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

// soak is a run of TestSoak.
type soak struct {
	*system
	done    atomic.Int64 // keys that came
	behind  atomic.Bool  // the workers are: wait with more
	samples []sample
}

// sample is what was seen at one time.
type sample struct {
	keys     int64   // that had come
	resident []int64 // bytes, of each process
}

// TestSoak counts KEYS keys that come once, by events, and as many others by
// checks, and sees that no process grows.
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
	streamtest.Build(t) // without the limit
	for name, value := range map[string]string{"GOMEMLIMIT": fmt.Sprint(soakLimit), "STREAMCOUNTER_RETENTION": "1m",
		"STREAMCOUNTER_CHECK_TIMEOUT": "5s"} {
		t.Setenv(name, value) // for the processes that are started from here on
	}
	own := streamtest.OwnRedis(t)
	s := &soak{system: &system{t: t, nats: streamtest.OwnNATS(t), keys: newKeys(t)}}
	s.admin = streamtest.Connect(t, own.Addr())
	s.start(soakRules, own.URL(), own.URL(), own.URL())
	stop := testkit.Background(t, s.watch)
	s.drive(keys)
	s.drained()
	stop()

	alerts, err := s.jetStream().Stream(t.Context(), "SC_ALERTS")
	testkit.Must(t, err)
	if alerts.CachedInfo().State.LastSeq == 0 {
		t.Error("no transitions: the soak proves less than it says")
	}
	for i := range s.parts() { // the first is serve
		first, last, most := s.thirds(i, int64(2*keys))
		t.Logf("process %d: MiB resident: %d in the first third, %d in the last, %d at most", i, first>>20, last>>20,
			most>>20)
		if last-first > soakGrowth || most > soakLimit+soakMargin {
			t.Errorf("process %d grew by %d MiB to %d MiB; %d and %d are allowed", i, (last-first)>>20, most>>20,
				soakGrowth>>20, (soakLimit+soakMargin)>>20)
		}
	}
}

// watch takes a sample each second until ctx ends, and holds the driver up while the
// workers are behind.
func (s *soak) watch(ctx context.Context) {
	for pause.For(ctx, time.Second) {
		now := sample{keys: s.done.Load()}
		for _, p := range s.parts() {
			n, err := testkit.Resident(p.Pid())
			testkit.Must(s.t, err)
			now.resident = append(now.resident, n)
		}
		s.samples = append(s.samples, now)
		backlogs, err := eventlog.Backlogs(ctx, s.admin, s.keys)
		if err != nil && ctx.Err() == nil {
			s.t.Error(err)
		}
		behind := false
		for _, b := range backlogs {
			behind = behind || b.Oldest > 2*time.Second
		}
		s.behind.Store(behind)
	}
}

// thirds returns the median memory of process i while the first and the last third of the
// keys came, and the most that it ever had.
func (s *soak) thirds(i int, keys int64) (first, last, most int64) {
	var begin, end []int64
	for _, one := range s.samples {
		n := one.resident[i]
		if one.keys <= keys/3 {
			begin = append(begin, n)
		}
		if one.keys >= keys-keys/3 {
			end = append(end, n)
		}
		most = max(most, n)
	}
	slices.Sort(begin)
	slices.Sort(end)
	return begin[len(begin)/2], end[len(end)/2], most
}

const soakStep = 1000 // keys of events that are appended at a time, and as many are checked

// drive appends and asks, in step, until all keys were there.
func (s *soak) drive(keys uint64) {
	s.producer = func() redis.UniversalClient { return s.admin }
	d, steps := &driver{s: s.system}, make(chan uint64)
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			log := d.log()
			for from := range steps {
				n := min(soakStep, keys-from)
				s.append(log, from, n)
				s.ask(from, n)
				s.done.Add(int64(2 * n))
			}
		})
	}
	for from := uint64(0); from < keys && !s.t.Failed(); from += soakStep {
		for s.behind.Load() && pause.For(s.t.Context(), 10*time.Millisecond) {
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
		checks := make([]check, min(n, 100))
		for i := range checks {
			checks[i].key, checks[i].cost = soakKey("check", from+uint64(i))
		}
		answers, err := s.severalByHTTP(http.DefaultClient, true)(checks)
		for _, a := range answers {
			if a != granted {
				err = fmt.Errorf("the answers are %v", answers)
			}
		}
		if err != nil {
			s.t.Errorf("checks of %d keys from %d on: %v", len(checks), from, err)
		}
	}
}
