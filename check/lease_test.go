package check

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// processes check the same keys, under their own prefix, by a clock that the test moves: Redis has the same clock, or
// is behind. Marks are read at once, in the caller's goroutine.
type processes struct {
	t        rapid.TB
	redis    *redis.Client
	keys     *stream.Keys
	clock    int64 // the processes'
	behind   int64 // Redis's is behind it by so much
	rules    *windows.Rules
	denials  int // that each remembers
	metric   *Metrics
	other    *counters.Redis // of nobody: events, resets, the sweep
	all      []*process
	admitted map[string][]admission
	leased   int // answers from leases

	mu      sync.Mutex
	answers map[string]int64 // as Activity has them: allowed or denied, and a key → answers
	units   map[string]int64
}

// Checks implements Activity.
func (l *processes) Checks(_, key string, answers, units int64, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[outcomeOf(allowed)+" "+key] += answers
	l.units[outcomeOf(allowed)+" "+key] += units
}

type admission struct{ at, units int64 }

// process is one process, with the timers that it has set.
type process struct {
	*Service
	overrides *overrides.All
	frozen    bool
	timers    testkit.Timers
}

func newProcesses(t rapid.TB, c *redis.Client, prefix string, denials int,
	rules *windows.Rules) *processes {
	keys, err := stream.NewKeys(prefix, 8)
	testkit.Must(t, err)
	l := &processes{t: t, redis: c, keys: keys, clock: beginning, rules: rules,
		denials: denials, metric: NewMetrics(prometheus.NewRegistry()), admitted: map[string][]admission{},
		answers: map[string]int64{}, units: map[string]int64{}}
	l.other = l.counter()
	return l
}

func (l *processes) counter() *counters.Redis {
	counter := counters.New(l.redis, l.keys)
	counter.Now = func() int64 { return l.clock - l.behind }
	return counter
}

// start adds a process.
func (l *processes) start() *process {
	one := &process{}
	counter := l.counter()
	one.overrides = counter.NewOverrides(nil)
	var err error
	rules := windows.Under(one.overrides, func() *windows.Rules { return l.rules })
	one.Service, err = NewService(Config{Counter: counter, Rules: rules, Activity: l, Timeout: 20 * time.Second,
		Denials: l.denials, Metrics: l.metric, Now: func() time.Time { return time.UnixMilli(l.clock) }})
	testkit.Must(l.t, err)
	one.denials.start = func(read func()) { read() }
	one.leases.After = func(d time.Duration, do func()) lease.Stopper {
		return one.timers.Set(l.clock+max(d, 0).Milliseconds(), do)
	}
	l.all = append(l.all, one)
	return one
}

// fire runs the timers of a process that are due.
func (l *processes) fire(one *process) {
	for do := one.timers.Due(l.clock); do != nil; do = one.timers.Due(l.clock) {
		do()
		one.leases.Wait()
	}
}

// advance lets time pass in steps of up to 20 ms.
func (l *processes) advance(ms int64) {
	for ms > 0 {
		step := min(ms, 20)
		l.clock, ms = l.clock+step, ms-step
		for _, one := range l.all {
			if !one.frozen {
				l.fire(one)
			}
		}
	}
}

func (l *processes) ask(one *process, key string, cost int64) {
	a, err := one.Check(context.Background(), api.CheckRequest{Key: key, Cost: cost})
	testkit.Must(l.t, err)
	one.leases.Wait() // those that the check did not wait for
	if a.Source == api.SourceLease {
		l.leased++
	}
	if a.Allowed {
		l.admitted[key] = append(l.admitted[key], admission{l.clock, cost})
	}
	l.recount(key, a)
}

// recount: no window holds more than the limit, and what Redis has as used is not less than was admitted.
func (l *processes) recount(key string, a api.CheckAnswer) {
	st, err := l.other.Peek(context.Background(), l.rules.Match(key), key)
	testkit.Must(l.t, err)
	for w, window := range l.rules.Match(key).Live.Windows {
		sum := int64(0)
		for _, one := range l.admitted[key] {
			if one.at > l.clock-window.Per.Milliseconds() {
				sum += one.units
			}
		}
		if a.Allowed && sum > window.Limit {
			l.t.Fatalf("%d admitted in %s, limit %d, last by %+v", sum, window.Per, window.Limit, a)
		}
		if used := st.Windows[w].Used; used < sum {
			l.t.Fatalf("%d admitted in %s, Redis has %d, after %+v", sum, window.Per, used, a)
		}
	}
}

// sweep is what a worker does: it settles what has expired.
func (l *processes) sweep() {
	for p := range l.keys.Partitions {
		fields, err := l.other.DueRecords(context.Background(), p, l.clock-l.behind, 1000)
		testkit.Must(l.t, err)
		_, _, err = reservations.New(l.other).Sweep(context.Background(), p, l.rules, fields)
		testkit.Must(l.t, err)
	}
}

func leasedRules(t testing.TB, algorithm string, limit int64) *windows.Rules {
	hot := rule("*", windows.Window{Limit: limit, Per: time.Second},
		windows.Window{Limit: 2 * limit, Per: 3 * time.Second})
	hot.Algorithm, hot.Lease = algorithm, 100*time.Millisecond
	shadow := rule("s:*", windows.Window{Limit: limit / 2, Per: 2 * time.Second})
	shadow.Shadow = true
	return rulesOf(t, shadow, hot)
}

var leaseSteps = []string{"burst", "burst", "burst", "advance", "advance", "freeze", "crash", "stop", "reset",
	"reload", "clock", "sweep", "plain"}

func (l *processes) step(rulesOf func(limit int64) *windows.Rules) {
	key := rapid.SampledFrom([]string{"a", "s:1"}).Draw(l.t.(*rapid.T), "key")
	rt := l.t.(*rapid.T)
	i := rapid.IntRange(0, len(l.all)-1).Draw(rt, "process")
	one := l.all[i]
	switch rapid.SampledFrom(leaseSteps).Draw(rt, "step") {
	case "burst":
		cost := rapid.Int64Range(1, 3).Draw(rt, "cost")
		for range rapid.IntRange(1, 60).Draw(rt, "times") {
			one.frozen = false // it wakes with this check, before its timers
			l.ask(one, key, cost)
			if rapid.IntRange(0, 4).Draw(rt, "passes") == 0 {
				l.advance(1)
			}
		}
	case "advance":
		l.advance(rapid.Int64Range(1, 400).Draw(rt, "ms"))
	case "freeze": // until its next check, or for ever
		one.frozen = true
		l.advance(rapid.Int64Range(50, 1500).Draw(rt, "ms"))
		l.sweep()
	case "crash":
		one.leases.Stop()
		l.all = slices.Delete(l.all, i, i+1)
		l.start()
	case "stop":
		one.Close()
		l.all = slices.Delete(l.all, i, i+1)
		l.start()
	case "reset":
		_, err := l.other.Reset(context.Background(), l.rules.Match(key), key)
		testkit.Must(rt, err)
		l.admitted[key] = nil
	case "reload":
		// Others each time, as after any reload.
		l.rules = rulesOf(rapid.SampledFrom([]int64{60, 150}).Draw(rt, "limit"))
	case "clock":
		l.behind += rapid.Int64Range(0, 50).Draw(rt, "back")
	case "sweep":
		l.sweep()
	case "plain": // in a call of two keys, which no lease answers
		all, err := one.CheckAll(context.Background(), []api.CheckRequest{{Key: key, Cost: 2}, {Key: "b"}})
		testkit.Must(rt, err)
		if all.Allowed {
			l.admitted[key] = append(l.admitted[key], admission{l.clock, 2})
			l.recount(key, all.Checks[0])
		}
	}
}

// Whichever process is frozen, crashes or ends, and whatever is reset and reloaded: every window in Redis has at
// least the admitted units as used, and no more than the limit.
func TestLeasesEqualTheRecount(t *testing.T) {
	// The others are estimates, or count by the windows of the clock.
	for _, algorithm := range append(lua.Exact(), windows.SlidingBuckets) {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			c := streamtest.AnyRedis(t)
			prefix, run, leased := streamtest.Prefix(t), 0, 0
			rules := func(limit int64) *windows.Rules { return leasedRules(t, algorithm, limit) }
			rapid.Check(t, func(rt *rapid.T) {
				run++
				l := newProcesses(rt, c, fmt.Sprint(prefix, "-", run), 10, rules(150))
				for range 3 {
					l.start()
				}
				for range rapid.IntRange(1, 30).Draw(rt, "steps") {
					l.step(rules)
				}
				leased += l.leased
				for _, one := range l.all {
					one.Close()
				}
			})
			if !testing.Short() && leased < 10*run { // a few draws may have none
				t.Errorf("%d answers from leases in %d runs: this proves too little", leased, run)
			}
		})
	}
}

// hotKey returns a process with a lease on the key k, under a rule of 1000 in a second.
func hotKey(t *testing.T) (*processes, *process) {
	t.Helper()
	hot := rule("*", windows.Window{Limit: 1000, Per: time.Second})
	hot.Lease = 100 * time.Millisecond
	l := newProcesses(t, streamtest.AnyRedis(t), streamtest.Prefix(t), 10, rulesOf(t, hot))
	one := l.start()
	for range lease.HotAsks + 5 {
		l.ask(one, "k", 1)
	}
	if g := one.leases.Find("k").Grant(); g == nil || one.leases.Find("k").Left() == 0 {
		t.Fatalf("no lease after %d checks: %+v", lease.HotAsks+5, g)
	}
	return l, one
}

func (l *processes) used(key string) int64 {
	st, err := l.other.Peek(context.Background(), l.rules.Match(key), key)
	testkit.Must(l.t, err)
	return st.Windows[0].Used
}

// hookedRenewals call functions before and after each renewal.
type hookedRenewals struct {
	leaseStore
	before, after func()
}

func (s hookedRenewals) RenewLease(ctx context.Context, plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest,
) (reservations.Leased, error) {
	s.before()
	defer s.after()
	return s.leaseStore.RenewLease(ctx, plan, ttl, ask)
}

// slowRenewals reports when a renewal begins, and makes it wait.
func (one *process) slowRenewals() (begun <-chan struct{}, goOn chan struct{}) {
	begins, goOn := make(chan struct{}, 1), make(chan struct{})
	one.leases.held = hookedRenewals{one.leases.held, func() { begins <- struct{}{}; <-goOn }, func() {}}
	return begins, goOn
}

func TestALeaseThatIsToEndWhileItIsRenewed(t *testing.T) {
	l, one := hotKey(t)
	begun, goOn := one.slowRenewals()
	over := one.leases.Find("k").Start(1)
	<-begun
	one.leases.changed("k", reset)
	close(goOn)
	<-begun // the next one, which ends it
	<-over
	if used := l.used("k"); used != lease.HotAsks+5 || one.leases.Find("k") != nil {
		t.Errorf("%d used, want %d and no lease", used, lease.HotAsks+5)
	}
}

// override sets the override of a key in another process, or clears it, and lets this process load it.
func (l *processes) override(one *process, key string, set api.Override) {
	l.t.Helper()
	by, ctx := l.other.NewOverrides(nil), context.Background()
	if set.Key = key; !set.Block && set.Windows == nil {
		_, err := by.Clear(ctx, key, "", "test", "")
		testkit.Must(l.t, err)
	} else {
		_, err := by.Set(ctx, l.rules.ValidateOverride, set, 0)
		testkit.Must(l.t, err)
	}
	testkit.Must(l.t, one.overrides.Poll(ctx))
}

// silentRedis is a client of a server that takes commands and never answers.
func silentRedis(t *testing.T) *redis.Client {
	// A host name would be looked up, outside of the bubble.
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, ContextTimeoutEnabled: true,
		DisableIdentity: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			mine, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			return mine, nil
		}})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// No check waits longer than the deadline, whatever it waits for.
func TestLeasesKeepTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot := rule("*", windows.Window{Limit: 1000, Per: time.Minute})
		hot.Lease = 5 * time.Second
		s := newService(t, silentRedis(t), Config{Timeout: 250 * time.Millisecond,
			NoAnswer: func(err error) error { return err }}, hot)
		for n := range 2 * lease.HotAsks {
			began := time.Now()
			if _, err := s.Check(t.Context(), api.CheckRequest{Key: "k"}); err == nil {
				t.Fatal("a Redis that does not answer has answered")
			}
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Fatalf("check %d took %s", n, took)
			}
		}
		synctest.Wait()
		one := s.leases.Find("k")
		if one == nil || one.Grant() == nil {
			t.Fatal("no lease was asked for")
		}
		g, now := one.Grant(), time.Now()
		left := lease.Answer{Grant: g, Now: now}.RetryAfter() + g.Age(now)
		if left != hot.Lease {
			t.Errorf("no units are asked for for %s after Redis has not answered, want %s", left, hot.Lease)
		}
	})
}

// lateRenewals makes renewals be answered some time after Redis has answered.
func (l *processes) lateRenewals(one *process, late time.Duration) {
	one.leases.held = hookedRenewals{one.leases.held, func() {}, func() { l.clock += late.Milliseconds() }}
}

// charge makes others use units, even if there is no room for them.
func (l *processes) charge(key string, units int64) {
	_, err := l.other.Check(context.Background(), []counters.Request{{Plan: l.rules.Match(key), Key: key, Cost: units,
		Mode: api.ModeCharge}})
	testkit.Must(l.t, err)
}

// A call that came while the answer of a renewal was under way, but after the pause that it asks for, is decided by
// the next renewal.
func TestARenewalDoesNotDecideWhoCameLongAfterIt(t *testing.T) {
	for after, allowed := range map[time.Duration]bool{20 * time.Millisecond: false, 50 * time.Millisecond: true} {
		l, one := hotKey(t)
		begun := l.clock
		l.clock += 200 // what it had is charged by the next renewal
		l.charge("k", 1000)
		l.clock = begun + 1190 // 10 ms before those are free, and all else is
		l.lateRenewals(one, 60*time.Millisecond)
		arrived := one.denials.now().Add(after)
		held := one.leases.Find("k")
		<-held.Start(1)
		requests := []counters.Request{{Plan: l.rules.Match("k"), Key: "k", Cost: 1, Mode: api.ModeTake}}
		d, ok := one.leases.decide(t.Context(), &call{byKey: requests}, arrived, time.Now().Add(time.Minute))
		one.leases.Wait()
		if !ok || d.Allowed != allowed {
			t.Errorf("after %v: %+v, %v", after, d, ok)
		}
	}
}

// A call waits for a renewal that is not answered for only a part of the time that a check may take. Then the check
// goes to Redis.
func TestARenewalThatIsNotAnswered(t *testing.T) {
	l, one := hotKey(t)
	one.config.Timeout = 4 * time.Second
	begun, goOn := one.slowRenewals()
	l.clock += 1000
	a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
	if err != nil || a.Source != api.SourceRedis {
		t.Errorf("%+v, %v", a, err)
	}
	<-begun
	close(goOn)
	one.leases.Wait()
}
