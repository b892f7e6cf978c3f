package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
	"github.com/streamcounter/streamcounter/windows"
)

// hotRules: keys h:* may be leased for 100 ms, under two windows.
func hotRules(limit int64) []*windows.Rule {
	return []*windows.Rule{{Name: "hot", Match: "h:*", Lease: 100 * time.Millisecond, Windows: []windows.Window{
		{Limit: limit, Per: time.Second}, {Limit: 2 * limit, Per: 3 * time.Second}}},
		{Name: "plain", Match: "p:*", Windows: []windows.Window{{Limit: limit, Per: time.Second}}}}
}

// lessees are clients of a server which lease, by a clock that the test moves.
type lessees struct {
	t        rapid.TB
	w        *world
	addr     string
	clock    atomic.Int64 // the clients'; the world's is Redis's, and may be behind
	key      string
	all      []*lessee
	admitted map[string][]admission
	leased   int // answers from leases
	late     int // renewals that were answered late, or never
}

type admission struct{ at, units int64 }

// lessee is one client, with the timers that it has set.
type lessee struct {
	*client.Client
	network *badNetwork
	frozen  bool
	timers  testkit.Timers
}

// badNetwork is a transport, and what happens to its next renewals.
type badNetwork struct {
	*client.HTTP
	in            *lessees
	before, after int64 // ms that pass before the server has the next one, and before its answer comes
	lose          error // of the next one; the server has it unless the error wraps api.ErrNotSent
	times         int   // renewals that the server had
}

// Lease implements client.Leaser.
func (n *badNetwork) Lease(ctx context.Context, req api.LeaseRequest) (api.LeaseAnswer, error) {
	before, after, lose := n.before, n.after, n.lose
	n.before, n.after = 0, 0
	n.in.pass(before)
	if errors.Is(lose, api.ErrNotSent) {
		return api.LeaseAnswer{}, lose
	}
	n.times++
	n.lose = nil
	got, err := n.HTTP.Lease(ctx, req)
	n.in.pass(after)
	if lose != nil || before+after > 0 {
		n.in.late++
	}
	if lose != nil {
		return api.LeaseAnswer{}, lose
	}
	return got, err
}

func newLessees(t rapid.TB, w *world, addr string, n int) *lessees {
	l := &lessees{t: t, w: w, addr: addr, admitted: map[string][]admission{}}
	l.clock.Store(w.clock.Load())
	for range n {
		l.all = append(l.all, l.start())
	}
	return l
}

func (l *lessees) start() *lessee {
	transport, err := client.NewHTTP("http://"+l.addr, client.HTTPConfig{})
	testkit.Must(l.t, err)
	one := &lessee{network: &badNetwork{HTTP: transport, in: l}}
	// Its checks have idempotency keys, so the server, which has another clock, leases nothing for itself.
	one.Client, err = client.New(one.network, client.Config{Timeout: patience, Leases: 10, Now: l.clock.Load})
	testkit.Must(l.t, err)
	one.SetLeaseTimers(func(d time.Duration, do func()) lease.Stopper {
		return one.timers.Set(l.clock.Load()+max(d, 0).Milliseconds(), do)
	})
	return one
}

func (l *lessees) pass(ms int64) {
	l.clock.Add(ms)
	l.w.clock.Add(ms)
}

// fire runs the timers of a client that are due.
func (l *lessees) fire(one *lessee) {
	for do := one.timers.Due(l.clock.Load()); do != nil; do = one.timers.Due(l.clock.Load()) {
		do()
		one.Leases().Wait()
	}
}

// advance lets time pass in steps of up to 20 ms.
func (l *lessees) advance(ms int64) {
	for ms > 0 {
		step := min(ms, 20)
		ms -= step
		l.pass(step)
		for _, one := range l.all {
			if !one.frozen {
				l.fire(one)
			}
		}
	}
}

func (l *lessees) ask(one *lessee, key string, cost int64) api.CheckAnswer {
	at := l.clock.Load()
	a, err := one.Check(context.Background(), api.CheckRequest{Key: key, Cost: cost})
	testkit.Must(l.t, err)
	one.Leases().Wait() // those that the check did not wait for, which may have taken long
	switch a.Source {
	case api.SourceLease:
		l.leased++
	case api.SourceRedis, api.SourceCache:
		at = l.clock.Load()
	default:
		l.t.Fatalf("%+v", a)
	}
	if a.Allowed {
		l.admitted[key] = append(l.admitted[key], admission{at, cost})
		l.recount(key, a)
	}
	return a
}

// recount: no window holds more than the limit, and what Redis has as used is not less than was admitted.
func (l *lessees) recount(key string, a api.CheckAnswer) {
	state, err := l.w.service.Peek(context.Background(), key)
	testkit.Must(l.t, err)
	for w, window := range l.w.rules.Match(key).Live.Windows {
		sum := int64(0)
		for _, one := range l.admitted[key] {
			if one.at > l.clock.Load()-window.Per.Milliseconds() {
				sum += one.units
			}
		}
		if sum > window.Limit {
			l.t.Fatalf("%d admitted in %s, limit %d, last by %+v", sum, window.Per, window.Limit, a)
		}
		if used := state.Windows[w].Used; used < sum {
			l.t.Fatalf("%d admitted in %s, Redis has %d, after %+v", sum, window.Per, used, a)
		}
	}
}

var errLost = transport.Lost(errors.New("lost"))

var lesseeSteps = []string{"burst", "burst", "burst", "advance", "advance", "freeze", "crash", "close", "reset",
	"late", "lost", "unsent", "clock", "plain"}

func (l *lessees) step() {
	rt := l.t.(*rapid.T)
	i := rapid.IntRange(0, len(l.all)-1).Draw(rt, "client")
	one, key := l.all[i], l.key
	ms := func(name string, from, to int64) int64 { return rapid.Int64Range(from, to).Draw(rt, name) }
	switch rapid.SampledFrom(lesseeSteps).Draw(rt, "step") {
	case "burst":
		cost := ms("cost", 1, 3)
		for range rapid.IntRange(1, 60).Draw(rt, "times") {
			one.frozen = false // it wakes with this check, before its timers
			l.ask(one, key, cost)
			if rapid.IntRange(0, 4).Draw(rt, "passes") == 0 {
				l.advance(1)
			}
		}
	case "advance":
		l.advance(ms("ms", 1, 400))
	case "freeze": // until its next check, or for ever
		one.frozen = true
		l.advance(ms("ms", 50, 1500))
	case "crash":
		one.Leases().Stop()
		l.all[i] = l.start()
	case "close":
		one.Close()
		l.all[i] = l.start()
	case "reset":
		l.reset()
	case "late":
		one.network.before, one.network.after = ms("before", 0, 200), ms("after", 0, 200)
	case "lost":
		one.network.lose = errLost
	case "unsent":
		one.network.lose = transport.NotSent(errors.New("refused"))
		l.advance(ms("ms", 1, 150))
		one.network.lose = nil
	case "clock":
		l.w.clock.Add(-ms("back", 0, 50))
	case "plain": // with a key of the caller's, so no lease answers
		ctx := api.WithIdempotency(context.Background(), api.Idempotency{Key: rand.Text()})
		a, err := one.Check(ctx, api.CheckRequest{Key: key, Cost: 2})
		if err != nil || a.Source != api.SourceRedis {
			rt.Fatal(a, err)
		}
		if a.Allowed {
			l.admitted[key] = append(l.admitted[key], admission{l.clock.Load(), 2})
			l.recount(key, a)
		}
	}
}

// Clients freeze, die and close, answers are lost or late, and keys are reset. Every window in Redis still counts at
// least the admitted units, and never more than the limit.
func TestClientLeasesEqualTheRecount(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, hotRules(150)...)
	addr, runs, leased, late := w.serveHTTP(t), 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		w.clock.Add(10_000)
		l := newLessees(rt, w, addr, 3)
		l.key = fmt.Sprint("h:", runs)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			l.step()
		}
		leased, late = leased+l.leased, late+l.late
		for _, one := range l.all {
			one.Close()
			one.network.Close()
		}
	})
	if !testing.Short() && (leased < 10*runs || late < runs/10) { // a few draws may have none
		t.Errorf("%d answers from leases and %d late renewals in %d runs: this proves too little", leased, late, runs)
	}
}

// hot returns a client with a lease of h:1, of which it was asked for 15 units.
func hot(t *testing.T, rules ...*windows.Rule) (*lessees, *lessee) {
	t.Helper()
	if rules == nil {
		rules = hotRules(1000)
	}
	w := newWorld(t, streamtest.AnyRedis(t), patience, rules...)
	l := newLessees(t, w, w.serveHTTP(t), 1)
	l.key = "h:1"
	for range 15 {
		l.ask(l.all[0], l.key, 1)
	}
	if l.leased == 0 || l.all[0].Leases().Held(l.key).Left() == 0 {
		t.Fatalf("no lease after 15 checks: %d answers from it", l.leased)
	}
	t.Cleanup(l.all[0].Close)
	return l, l.all[0]
}

func (l *lessees) used() int64 {
	l.t.Helper()
	state, err := l.w.service.Peek(context.Background(), l.key)
	testkit.Must(l.t, err)
	return state.Windows[0].Used
}

func (l *lessees) reset() {
	l.t.Helper()
	_, err := l.w.service.Reset(context.Background(), l.key)
	testkit.Must(l.t, err)
	l.admitted[l.key] = nil
}

// A lease is used, and its end gives units back. The recount sees neither, nor the answers.
func TestClientLeases(t *testing.T) {
	l, one := hot(t)
	a := l.ask(one, l.key, 3)
	if a.Source != api.SourceLease || !a.Allowed || a.Rule != "hot" || a.Key != l.key || a.Cost != 3 ||
		len(a.Windows) != 2 || a.Windows[0].Used != 18 || a.Windows[0].Remaining != 982 || a.LeaseMs != 100 {
		t.Errorf("an answer has the state of the key: %+v", a)
	}
	// Other checks ask the server.
	for name, req := range map[string]api.CheckRequest{"look": {Mode: api.ModeLook}, "charge": {Mode: api.ModeCharge},
		"values": {Values: map[string]string{"a": "b"}}} {
		req.Key = l.key
		if a, err := one.Check(t.Context(), req); err != nil || a.Source != api.SourceRedis {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	for cost, want := range map[int64]error{1001: api.ErrCostExceedsLimit, -1: api.ErrBadCount} {
		_, err := one.Check(t.Context(), api.CheckRequest{Key: l.key, Cost: cost})
		if !errors.Is(err, want) {
			t.Errorf("a cost of %d: %v, want %v", cost, err, want)
		}
	}
	times := one.network.times
	for range 50 {
		if a := l.ask(one, "p:1", 1); a.Source != api.SourceRedis || one.network.times != times {
			t.Fatalf("a rule without lease: %+v after %d renewals", a, one.network.times-times)
		}
	}
	one.network.lose = transport.NotSent(errors.New("refused"))
	<-one.Leases().Held(l.key).Start(1)
	if a := l.ask(one, l.key, 1); a.Source != api.SourceLease {
		t.Errorf("a server that is away does not end it before its time: %+v", a)
	}
	one.network.lose = nil
	l.advance(100)
	l.ask(one, l.key, 1)
	if l.used() <= 22 {
		t.Errorf("%d used, want what is leased besides", l.used())
	}
	one.Close()
	if used := l.used(); used != 22 { // 15, 3, the charge, the values, 2
		t.Errorf("%d used after Close, want 22", used)
	}
	if a := l.ask(one, l.key, 1); a.Source != api.SourceRedis {
		t.Errorf("after Close: %+v", a)
	}
	l, one = hot(t)
	one.network.lose = errLost
	<-one.Leases().Held(l.key).Start(1)
	reserved := l.used()
	if a := l.ask(one, l.key, 1); a.Source != api.SourceRedis || l.used() != reserved+1 {
		t.Errorf("a lost answer ends it: %+v; %d used after %d", a, l.used(), reserved)
	}
}

// A key without room is denied from memory, with the wait until there is some.
func TestClientLeasesDeny(t *testing.T) {
	l, one := hot(t, &windows.Rule{Name: "hot", Match: "h:*", Lease: 100 * time.Millisecond,
		Windows: []windows.Window{{Limit: 100, Per: 5 * time.Second}}})
	full := l.clock.Load()
	_, err := l.w.service.Check(t.Context(), api.CheckRequest{Key: l.key, Cost: 100, Mode: api.ModeCharge})
	testkit.Must(t, err)
	for l.ask(one, l.key, 1).Allowed { // what it has
	}
	l.advance(100) // until the next renewal
	l.ask(one, l.key, 1)
	times := one.network.times
	for range 400 {
		l.advance(5)
		a := l.ask(one, l.key, 1)
		if want := full + 5000 - l.clock.Load(); a.Allowed || a.Source != api.SourceLease || a.RetryAfterMs != want {
			t.Fatalf("%+v, want a wait of %d ms", a, want)
		}
	}
	if n := one.network.times - times; n < 18 || n > 21 { // one each 100 ms
		t.Errorf("%d renewals in 2 s", n)
	}
	_, err = one.Check(t.Context(), api.CheckRequest{Key: l.key, Cost: 101})
	if !errors.Is(err, api.ErrCostExceedsLimit) {
		t.Errorf("a cost above the limit: %v", err)
	}
}
