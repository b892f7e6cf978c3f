package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

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

// lessees are processes that answer checks of the same keys from leases, by a clock that the test moves.
type lessees struct {
	t        rapid.TB
	redis    *redis.Client
	keys     *stream.Keys
	clock    int64 // the processes'
	behind   int64 // Redis's is behind it by so much
	rules    *windows.Rules
	denials  int
	other    *counters.Redis // of nobody: events, resets, the sweep
	all      []*lessee
	admitted map[string][]admission
	leased   int // answers from leases

	mu      sync.Mutex
	answers map[string]int64 // as Activity has them: allowed or denied, and a key → answers
	units   map[string]int64
}

// Checks implements Activity.
func (l *lessees) Checks(_, key string, answers, units int64, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[outcomeOf(allowed)+" "+key] += answers
	l.units[outcomeOf(allowed)+" "+key] += units
}

type admission struct{ at, units int64 }

// lessee is one process, with the timers that it has set.
type lessee struct {
	*Service
	overrides *overrides.All
	frozen    bool
	mu        sync.Mutex
	timers    []*testTimer
}

type testTimer struct {
	at      int64
	do      func()
	stopped bool
	in      *lessee
}

func (t *testTimer) Stop() bool {
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	t.stopped = true
	return true
}

func newLessees(t rapid.TB, c *redis.Client, prefix string, rules *windows.Rules, n int) *lessees {
	keys, err := stream.NewKeys(prefix, 2)
	testkit.Must(t, err)
	l := &lessees{t: t, redis: c, keys: keys, clock: 1_700_000_000_000, rules: rules, denials: 10,
		admitted: map[string][]admission{}, answers: map[string]int64{}, units: map[string]int64{}}
	l.other = l.counter()
	for range n {
		l.all = append(l.all, l.start())
	}
	return l
}

func (l *lessees) counter() *counters.Redis {
	counter := counters.New(l.redis, l.keys)
	counter.Now = func() int64 { return l.clock - l.behind }
	return counter
}

func (l *lessees) start() *lessee {
	one := &lessee{}
	counter := l.counter()
	one.overrides = counter.NewOverrides(nil)
	var err error
	rules := windows.Under(one.overrides, func() *windows.Rules { return l.rules })
	one.Service, err = NewService(Config{Counter: counter, Rules: rules, Activity: l, Timeout: 20 * time.Second,
		Denials: l.denials, Now: func() time.Time { return time.UnixMilli(l.clock) }})
	testkit.Must(l.t, err)
	one.denials.start = func(read func()) { read() }
	one.leases.After = func(d time.Duration, do func()) lease.Stopper {
		one.mu.Lock()
		defer one.mu.Unlock()
		timer := &testTimer{at: l.clock + max(d, 0).Milliseconds(), do: do, in: one}
		one.timers = append(one.timers, timer)
		return timer
	}
	return one
}

// fire runs the timers of a process that are due.
func (l *lessees) fire(one *lessee) {
	for {
		one.mu.Lock()
		one.timers = slices.DeleteFunc(one.timers, func(t *testTimer) bool { return t.stopped })
		i := slices.IndexFunc(one.timers, func(t *testTimer) bool { return t.at <= l.clock })
		if i < 0 {
			one.mu.Unlock()
			return
		}
		due := one.timers[i]
		one.timers = slices.Delete(one.timers, i, i+1)
		one.mu.Unlock()
		due.do()
		one.leases.Wait()
	}
}

// advance lets time pass in steps of up to 20 ms.
func (l *lessees) advance(ms int64) {
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

func (l *lessees) ask(one *lessee, key string, cost int64) {
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
func (l *lessees) recount(key string, a api.CheckAnswer) {
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
func (l *lessees) sweep() {
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

var lesseeSteps = []string{"burst", "burst", "burst", "advance", "advance", "freeze", "crash", "stop", "reset",
	"reload", "clock", "sweep", "plain"}

func (l *lessees) step(rulesOf func(limit int64) *windows.Rules) {
	key := rapid.SampledFrom([]string{"a", "s:1"}).Draw(l.t.(*rapid.T), "key")
	rt := l.t.(*rapid.T)
	i := rapid.IntRange(0, len(l.all)-1).Draw(rt, "process")
	one := l.all[i]
	switch rapid.SampledFrom(lesseeSteps).Draw(rt, "step") {
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
		l.all[i] = l.start()
	case "stop":
		one.Close()
		l.all[i] = l.start()
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
				l := newLessees(rt, c, fmt.Sprint(prefix, "-", run), rules(150), 3)
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

// hotKey returns one process with a lease on a key, and a rule of 1000 in a second.
func hotKey(t *testing.T, c *redis.Client, n int) (*lessees, *lessee) {
	t.Helper()
	hot := rule("*", windows.Window{Limit: 1000, Per: time.Second})
	hot.Lease = 100 * time.Millisecond
	l := newLessees(t, c, streamtest.Prefix(t), rulesOf(t, hot), n)
	for _, one := range l.all {
		for range lease.HotAsks + 5 {
			l.ask(one, "k", 1)
		}
		if g := one.leases.Find("k").Grant(); g == nil || one.leases.Find("k").Left() == 0 {
			t.Fatalf("no lease after %d checks: %+v", lease.HotAsks+5, g)
		}
	}
	return l, l.all[0]
}

func (l *lessees) used(key string) int64 {
	st, err := l.other.Peek(context.Background(), l.rules.Match(key), key)
	testkit.Must(l.t, err)
	return st.Windows[0].Used
}

func TestLeases(t *testing.T) {
	c := streamtest.AnyRedis(t)
	ctx := context.Background()
	t.Run("a clean stop charges what was used and no more", func(t *testing.T) {
		l, one := hotKey(t, c, 1)
		if used := l.used("k"); used <= lease.HotAsks+5 {
			t.Errorf("%d used, want what is leased besides", used)
		}
		one.Close()
		if used := l.used("k"); used != lease.HotAsks+5 {
			t.Errorf("%d used after the stop, want %d", used, lease.HotAsks+5)
		}
		a, err := one.Check(ctx, api.CheckRequest{Key: "k"})
		if err != nil || a.Source != api.SourceRedis || l.leased == 0 {
			t.Errorf("after the stop: %+v, %v; %d answers from the lease before", a, err, l.leased)
		}
	})
	t.Run("a process that sleeps past the end admits nothing from it", func(t *testing.T) {
		l, one := hotKey(t, c, 1)
		l.clock += 101
		if got, _ := one.leases.Find("k").Take(1); got.Allowed {
			t.Error("a unit was taken from a lease that has ended")
		}
		l.clock += 100
		l.sweep() // charged as leased
		if used := l.used("k"); used <= lease.HotAsks+5 {
			t.Errorf("%d used, want all that was leased", used)
		}
		l.ask(one, "k", 1)
		l.clock += 1001
		l.sweep()
		if used := l.used("k"); used > 0 && one.leases.Find("k") == nil {
			t.Errorf("%d used a second later", used)
		}
	})
	t.Run("a key that is asked for rarely takes none", func(t *testing.T) {
		l, _ := hotKey(t, c, 1)
		for range 50 {
			l.ask(l.all[0], "rare", 1)
			l.advance(12)
		}
		if one := l.all[0].leases.Find("rare"); one != nil {
			t.Errorf("it has %d units", one.Left())
		}
		if n := l.all[0].leases.Len(); n != 0 {
			t.Errorf("%d leases of keys that nobody asks for any more", n)
		}
	})
	t.Run("a reset by another process is known within 50 ms", func(t *testing.T) {
		l, one := hotKey(t, c, 2)
		_, err := l.other.Reset(ctx, l.rules.Match("k"), "k")
		testkit.Must(t, err)
		if used := l.used("k"); used == 0 {
			t.Error("what is leased and may be spent does not count after the reset")
		}
		l.advance(50)
		if one.leases.Find("k") != nil {
			t.Error("the lease goes on")
		}
	})
	t.Run("other rules end it", func(t *testing.T) {
		l, one := hotKey(t, c, 1)
		plain := rule("*", windows.Window{Limit: 1000, Per: time.Second})
		l.rules = rulesOf(t, plain)
		a, err := one.Check(ctx, api.CheckRequest{Key: "k"})
		one.leases.Wait()
		if err != nil || a.Source != api.SourceRedis || l.used("k") != lease.HotAsks+6 {
			t.Errorf("%+v, %v, %d used", a, err, l.used("k"))
		}
	})
	t.Run("calls that are no plain checks ask Redis", func(t *testing.T) {
		_, one := hotKey(t, c, 1)
		for _, mode := range []api.Mode{api.ModeLook, api.ModeCharge} {
			a, err := one.Check(ctx, api.CheckRequest{Key: "k", Mode: mode})
			if err != nil || a.Source != api.SourceRedis {
				t.Errorf("mode %s: %+v, %v", mode, a, err)
			}
		}
		for key, want := range map[api.Idempotency]api.Source{
			{Key: "x"}: api.SourceRedis, {Key: "y", First: true}: api.SourceLease,
		} {
			ctx := api.WithIdempotency(ctx, key)
			if a, err := one.Check(ctx, api.CheckRequest{Key: "k"}); err != nil || a.Source != want {
				t.Errorf("with an idempotency key, %+v: %+v, %v, want source %s", key, a, err, want)
			}
			if a, err := one.Check(api.Again(ctx), api.CheckRequest{Key: "k"}); err != nil ||
				a.Source != api.SourceRedis {
				t.Errorf("with an idempotency key, again: %+v, %v", a, err)
			}
		}
		// If one answer is lost, all are asked for again.
		first := api.WithIdempotency(ctx, api.Idempotency{Key: "z", First: true})
		for i, e := range one.CheckEach(first, []api.CheckRequest{{Key: "k"}, {Key: "other"}}) {
			if e.Err != nil || e.Source != api.SourceRedis {
				t.Errorf("with an idempotency key, %d of two: %+v, %v", i, e.CheckAnswer, e.Err)
			}
		}
	})
}

// exhaust returns a process that remembers so many denials, a key that may be leased and has no units left in a
// window of 5 s, and the calls of Redis since then.
func exhaust(t *testing.T, c *redis.Client, denials int) (*lessees, *lessee, func() int) {
	t.Helper()
	hot := rule("*", windows.Window{Limit: 100, Per: 5 * time.Second})
	hot.Lease = 100 * time.Millisecond
	l := newLessees(t, c, streamtest.Prefix(t), rulesOf(t, hot), 0)
	l.denials = denials
	l.all = append(l.all, l.start())
	for range 300 {
		l.ask(l.all[0], "k", 1)
		l.advance(1)
	}
	return l, l.all[0], countScripts(c)
}

// A key that has no room is denied from memory, whether other keys are or not: its rule has lease.
func TestALeasedKeyIsDeniedFromMemory(t *testing.T) {
	for _, denials := range []int{-1, 0, 10} {
		t.Run(fmt.Sprint(denials, " remembered"), func(t *testing.T) {
			c := streamtest.Connect(t, streamtest.Redis(t))
			l, one, asked := exhaust(t, c, denials)
			for range 800 {
				l.advance(5)
				l.ask(one, "k", 1)
			}
			// A renewal a second, and a check at first, as no mark of its partition is known. (Each answer is
			// compared with a look, which is a script too.)
			if n := asked() - 800; n > 6 {
				t.Errorf("Redis was asked %d times in 4 s", n)
			}
		})
	}
	t.Run("no other key is", func(t *testing.T) {
		c := streamtest.Connect(t, streamtest.Redis(t))
		l := newLessees(t, c, streamtest.Prefix(t), rulesOf(t, rule("*", windows.Window{Limit: 1, Per: time.Hour})), 0)
		l.denials = 0
		one := l.start()
		for range 10 {
			a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
			if err != nil || a.Source != api.SourceRedis {
				t.Errorf("%+v, %v; want an answer of Redis", a, err)
			}
		}
	})
}

func TestAResetFreesALeasedKeyThatIsDenied(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t))
	l, one, _ := exhaust(t, c, 0)
	for range 20 {
		l.advance(5)
		l.ask(one, "k", 1)
	}
	_, err := l.other.Reset(t.Context(), l.rules.Match("k"), "k")
	testkit.Must(t, err)
	l.admitted["k"] = nil
	for range 10 { // every 5 ms, as marks are read while it is asked for
		l.advance(5)
		l.ask(one, "k", 1)
	}
	if len(l.admitted["k"]) == 0 {
		t.Error("denied 50 ms after a reset by another process")
	}
}
