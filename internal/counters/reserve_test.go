package counters_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// held is a reservation in the recount.
type held struct {
	id      string
	keys    []string
	units   []int64
	expires int64
}

// ledger is a timeline with reservations: reserved units count as used in every window, until they
// are committed or cancelled, or expire.
type ledger struct {
	*timeline
	open  []*held
	frees bool
}

// newLedger makes a ledger of a timeline. Its rule may also have an in-flight window.
func newLedger(t *timeline) *ledger {
	l, rule := &ledger{timeline: t}, *t.rule
	rule.OnDeny = windows.OnDenySkip
	if rapid.Bool().Draw(t.T, "in flight") {
		w := windows.Window{Limit: rapid.Int64Range(1, 20).Draw(t.T, "slots"), Per: 20 * time.Minute, InFlight: true}
		rule.Windows = append(slices.Clone(rule.Windows), w)
		l.limits = append(l.limits, OracleWindow{Ms: w.Per.Milliseconds(), Limit: w.Limit})
	}
	if l.frees = rapid.Bool().Draw(t.T, "frees"); l.frees {
		rule.OnExpire = windows.OnExpireFree
	}
	l.s.rules = rulesOf(t.T, &rule)
	l.rule, l.plan = l.s.rules.List()[0], planOf(l.s.rules)
	return l
}

var reserved int // whose ids are remembered from run to run

// outstanding returns how many units of a key are reserved and not settled, and when the last of them expire.
func (l *ledger) outstanding(key string) (units, till int64) {
	for _, h := range l.open {
		for i, k := range h.keys {
			if k == key && h.units[i] > 0 {
				units, till = units+h.units[i], max(till, h.expires)
			}
		}
	}
	return units, till
}

// used counts reserved units until the last of them expire, and then as if they were charged at that time.
func (l *ledger) used(key string, w int) int64 {
	units, till := l.outstanding(key)
	oracle := l.oracle
	if known, ok := oracle.(*Oracle); ok && till <= l.s.clock.ms {
		events := map[string][]Happened{key: slices.Clone(known.events[key])}
		oracle = &Oracle{Formula: known.Formula, events: events}
		l.charge(oracle, key, till, units)
		units = 0
	}
	if !l.rule.Windows[w].InFlight {
		units += oracle.Used(key, oracle.Clock(key, l.s.clock.ms), l.limits[w].Ms)
	}
	return units
}

// charge adds units of a key that expired at a time.
func (l *ledger) charge(to recount, key string, at, units int64) {
	if units > 0 && !l.frees && l.charges() && at > to.Clock(key, l.s.clock.ms)-l.span {
		to.Add(key, at, units)
	}
}

// expire settles the expired units of a key.
func (l *ledger) expire(key string) {
	for _, h := range l.open { // in the order in which they expire
		for i, k := range h.keys {
			if k == key && h.expires <= l.s.clock.ms {
				l.charge(l.oracle, key, h.expires, h.units[i])
				h.units[i] = 0
			}
		}
	}
	l.open = slices.DeleteFunc(l.open, func(h *held) bool {
		return h.expires <= l.s.clock.ms && !slices.ContainsFunc(h.units, func(n int64) bool { return n > 0 })
	})
}

// running returns the reservations that have not expired.
func (l *ledger) running() []*held {
	return slices.DeleteFunc(slices.Clone(l.open), func(h *held) bool { return h.expires <= l.s.clock.ms })
}

func (l *ledger) admits(key string, cost int64) bool {
	for w := range l.limits {
		if l.used(key, w)+cost > l.limits[w].Limit {
			return false
		}
	}
	return true
}

func (l *ledger) compareAll(what string) {
	l.Helper()
	for _, key := range l.keys {
		l.compareHeld(what, key, l.s.peek(key))
	}
}

func (l *ledger) compareHeld(what, key string, st windows.KeyState) {
	l.Helper()
	for w, state := range st.Windows {
		if want := l.used(key, w); state.Used != want {
			units, till := l.outstanding(key)
			l.Fatalf("%s: key %s window %d: used %d, recount says %d, of it %d reserved for %d ms", what, key,
				l.limits[w].Ms, state.Used, want, units, till-l.s.clock.ms)
		}
		if state.Used > 0 && (state.NextFreeMs < 1 || state.EmptyMs < state.NextFreeMs) {
			l.Fatalf("%s: key %s: %+v", what, key, state)
		}
	}
}

// charges reports whether a window of the rule counts charged units.
func (l *ledger) charges() bool {
	return slices.ContainsFunc(l.rule.Windows, func(w windows.Window) bool { return !w.InFlight })
}

// advance lets time pass, and sweeps: expired units are then charged or free.
func (l *ledger) advance(by int64) {
	_, alone := l.oracle.(*Oracle)
	for _, h := range l.open { // with meters of several spans, each reservation is settled in time
		if first := h.expires - l.s.clock.ms; !alone && first > 0 && first < by {
			l.advance(first)
			l.advance(by - first)
			return
		}
	}
	l.s.clock.ms += by
	for _, key := range l.keys {
		l.expire(key)
	}
	l.s.sweep(l)
}

func (l *ledger) reserve(keys []string) {
	reserved++
	h := &held{keys: keys, expires: l.s.clock.ms + rapid.Int64Range(1, min(2*l.span, 86_400_000)).Draw(l.T, "ttl")}
	var requests []counters.Request
	want := true
	for _, key := range keys {
		l.expire(key)
		units := rapid.Int64Range(1, l.rule.Smallest()).Draw(l.T, "units")
		h.units = append(h.units, units)
		want = want && l.admits(key, units)
		requests = append(requests, counters.Request{Plan: l.plan, Key: key, Cost: units})
	}
	h.id = l.s.held.ID(fmt.Sprint("r", reserved), requests)
	for range rapid.IntRange(1, 2).Draw(l.T, "times") { // sent again, it does the same
		got, err := l.s.held.Reserve(context.Background(), h.id, ms(h.expires-l.s.clock.ms), "f", requests)
		testkit.Must(l, err)
		if got.Allowed != want || want && got.ExpiresMs != h.expires {
			l.Fatalf("reserving %v of %v: %+v, recount says %t", h.units, keys, got, want)
		}
		if want && !slices.Contains(l.open, h) {
			l.open = append(l.open, h)
			slices.SortStableFunc(l.open, func(a, b *held) int { return cmp.Compare(a.expires, b.expires) })
			for _, key := range keys {
				l.oracle.Add(key, l.s.clock.ms, 0) // no window of the key ends before it
			}
		}
		for i, key := range keys {
			l.compareHeld("reserve", key, got.Items[i])
		}
	}
}

func (l *ledger) settle(op reservations.SettleOp) {
	if len(l.running()) == 0 {
		return
	}
	h := rapid.SampledFrom(l.running()).Draw(l.T, "which")
	for _, key := range h.keys {
		l.expire(key)
	}
	cost := rapid.Int64Range(0, 2*l.rule.Smallest()).Draw(l.T, "cost")
	ttl := rapid.Int64Range(1, min(2*l.span, 1_200_000)).Draw(l.T, "ttl") // at most the in-flight window
	for range rapid.IntRange(1, 2).Draw(l.T, "times") {
		if got := l.s.settle(op, h.id, cost, ms(ttl)); got != reservations.Settled && got != reservations.DoneBefore {
			l.Fatalf("%s of %s: %v", op, h.id, got)
		}
	}
	if op == reservations.Renew {
		h.expires = l.s.clock.ms + ttl
		slices.SortStableFunc(l.open, func(a, b *held) int { return cmp.Compare(a.expires, b.expires) })
		return
	}
	l.open = slices.DeleteFunc(l.open, func(o *held) bool { return o == h })
	if op == reservations.Commit && cost > 0 && l.charges() {
		for _, key := range h.keys {
			l.oracle.Add(key, l.s.clock.ms, cost)
		}
	}
	other := map[reservations.SettleOp]reservations.SettleOp{reservations.Commit: reservations.Cancel,
		reservations.Cancel: reservations.Commit}[op]
	if got := l.s.settle(other, h.id, cost, ms(1)); got != reservations.WasCommitted &&
		got != reservations.WasCancelled {
		l.Fatalf("%s after %s: %v", other, op, got)
	}
}

var ledgerSteps = []string{"advance", "advance", "lapse", "reserve", "reserve", "both", "commit", "cancel", "renew",
	"check", "fold", "refund", "reset"}

func (l *ledger) run() {
	for range rapid.IntRange(1, 40).Draw(l.T, "steps") {
		key := rapid.SampledFrom(l.keys).Draw(l.T, "key")
		step := rapid.SampledFrom(ledgerSteps).Draw(l.T, "step")
		switch step {
		case "advance":
			l.advance(rapid.Int64Range(0, l.span/3+1).Draw(l.T, "by"))
		case "lapse": // time passes, and nobody sweeps
			if _, ok := l.oracle.(*Oracle); ok {
				l.s.clock.ms += rapid.Int64Range(0, l.span/3+1).Draw(l.T, "by")
			}
		case "reserve":
			l.reserve([]string{key})
		case "both":
			l.reserve(l.keys)
		case "commit", "cancel", "renew":
			l.settle(reservations.SettleOp(step))
		case "check":
			if l.rule.InFlight() > 0 {
				break // takes reservations only
			}
			cost := rapid.Int64Range(1, l.rule.Smallest()).Draw(l.T, "cost")
			v := l.s.check(key, cost)
			if want := l.admits(key, cost); v.Allowed != want {
				l.Fatalf("check of %d: allowed %t, recount says %t", cost, v.Allowed, want)
			}
			if v.Allowed {
				l.oracle.Add(key, l.s.clock.ms, cost)
			}
			if _, till := l.outstanding(key); till == 0 || till > l.s.clock.ms {
				l.compareHeld("check", key, v.Items[0])
			}
		case "fold":
			l.fold(key)
		case "reset":
			l.reset(key)
		case "refund":
			if units, _ := l.outstanding(key); units > 0 && l.rule.InFlight() == 0 {
				l.refund(key) // reserved units are not given back
			}
		}
		l.compareAll(step)
	}
}

// reset removes the charged and the reserved units of a key. Its reservations can still be
// settled: their costs are charged.
func (l *ledger) reset(key string) {
	l.s.reset(key)
	l.oracle.Reset(key)
	for _, h := range l.open {
		for i, k := range h.keys {
			if k == key {
				h.units[i] = 0
			}
		}
	}
}

// A sweep that finds no reservation under a due id checks again, and removes the id in the same step. A reservation
// that was made under this id meanwhile must still be swept.
func TestASweepForgetsNoReservationMadeMeanwhile(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		id := s.held.ID("a", s.requests(1, "k"))
		due := s.keys.Due(s.keys.Partition("k"))
		testkit.Must(t, s.redis.ZAdd(t.Context(), due, redis.Z{Score: float64(s.clock.ms), Member: "\n" + id},
			redis.Z{Score: float64(s.clock.ms), Member: "\nforeign"}).Err())
		made := false
		s.reader.AddHook(afterPipelines(func() {
			if !made {
				made = true
				s.holds("a", 1, time.Second, "k")
			}
		}))
		s.sweep(t)
		members := s.redis.ZRange(t.Context(), due, 0, -1).Val()
		if !made || !slices.Equal(members, []string{"\n" + id}) {
			t.Errorf("due are %q", members)
		}
	})
}

// Expired units are charged as of the end of their reservation, so they may leave within the second for which processes
// remember a denial. Then the processes must forget it.
func TestExpiredUnitsThatLeaveSoonEndDenialsFromMemory(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		for after, marks := range map[time.Duration]bool{5 * time.Second: false, 10500 * time.Millisecond: true} {
			key := "k" + strconv.FormatInt(after.Milliseconds(), 10)
			mark := func() string {
				return s.redis.HGet(t.Context(), s.keys.Levels(s.keys.Partition(key)), "\nfreed").Val()
			}
			s.reserve("a"+key, 1, time.Second, key)
			s.reserve("b"+key, 1, time.Hour, key)
			before := mark()
			s.after(after)
			if (mark() != before) != marks {
				t.Errorf("after %v the mark was %q and is %q", after, before, mark())
			}
		}
	})
}

// After a change of the rules, the keys at a level are evaluated again, but not the reservations: there may be
// many more of them, and they do not change.
func TestReservationsAreNotLookedAtAfterAReload(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		s.check("k", 10)
		s.reserve("a", 1, time.Minute, "k2{k}")
		got, err := s.store.Levelled(t.Context(), s.keys.Partition("k"))
		if err != nil || !slices.Equal(got, []string{"k"}) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// afterPipelines is a hook that runs a function after each pipeline.
type afterPipelines func()

func (a afterPipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (a afterPipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (a afterPipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if len(cmds) > 0 && cmds[0].Name() == "hget" {
			a()
		}
		return err
	}
}

// TestReservationsEqualTheRecount: reservations, checks, events and refunds in any order, under every
// algorithm, with and without an in-flight window.
func TestReservationsEqualTheRecount(t *testing.T) {
	eachAlgorithmInRedis(t, func(t *testing.T, s *store, a string) {
		eachTimeline(t, func(rt *rapid.T, prefix string) { newLedger(newTimeline(rt, s, a, prefix)).run() })
	})
}

// Some reserved units of a key are charged when they expire (a lease that is not renewed), some are free.
func TestReservationsOfAKeyThatEndDifferently(t *testing.T) {
	for _, leasedFirst := range []bool{true, false} {
		rule := windows.Rule{OnExpire: windows.OnExpireFree,
			Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
		t.Run(fmt.Sprint("leased first: ", leasedFirst), func(t *testing.T) {
			underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
				if !leasedFirst {
					s.holds("r", 20, ms(100), "k")
				}
				if n := s.leases("k", ms(125), api.LeaseRequest{Want: 60}); n != 60 {
					t.Fatalf("a lease of %d units", n)
				}
				if leasedFirst {
					s.holds("r", 20, ms(100), "k")
				}
				// Older processes, which know only one policy per key, must count it as charged.
				levels := s.keys.Levels(s.serve.Partition("k"))
				text, err := s.redis.HGet(t.Context(), levels, "\n\nk").Result()
				if err != nil || !regexp.MustCompile(`^0?80;\d+;\d+;c$`).MatchString(text) {
					t.Errorf("%q, %v", text, err)
				}
				s.clock.ms += 200
				// They are not settled: a caller that checks again and again gets longer and longer waits.
				asked := 0
				for ; s.clock.ms < start+5000; asked++ {
					s.clock.ms += s.check("k", 50).Items[0].RetryAfter.Milliseconds()
				}
				if asked > 15 {
					t.Errorf("denied %d times in 5 s", asked)
				}
			})
		})
	}
}

// With a reservation that is charged when it expires, the wait is exact: a look is denied until the last millisecond of
// the wait, and not in the next. In the first case, sliding-counter returned 13,334 ms. Reservations that were
// cancelled leave marks in the log of their key, which use no units.
func TestTheWaitBesideAReservationIsExact(t *testing.T) {
	const per, limit = 10_000, 20
	seed, cases := rand.Uint64(), 60
	if testing.Short() {
		cases = 12
	}
	rule := windows.Rule{Windows: []windows.Window{{Limit: limit, Per: per * time.Millisecond}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		random := rand.New(rand.NewPCG(seed, 0))
		for n := range cases {
			key := fmt.Sprint("k", n)
			look := func(cost int64) (allowed bool, waitMs int64) {
				v := s.ask(key, cost, api.ModeLook)
				return v.Allowed, v.Items[0].RetryAfter.Milliseconds()
			}
			at, used, reserved, ttl, cost, cancelled := int64(0), int64(3), int64(5), int64(2000), int64(13), 0
			if n > 0 {
				at, used, reserved = random.Int64N(per), 1+random.Int64N(9), 1+random.Int64N(9)
				ttl, cost, cancelled = 100+random.Int64N(2*per), 1+random.Int64N(limit), random.IntN(2)*random.IntN(12)
			}
			s.clock.ms += 3*per - s.clock.ms%per + at
			s.check(key, used)
			for i := range cancelled {
				s.clock.ms += 10
				s.settle(reservations.Cancel, s.holds(fmt.Sprint(key, "x", i), reserved, ms(ttl), key), 0, 0)
			}
			if n%4 == 3 { // all is cancelled: the window is empty when its limit is admitted
				ttl, cost = math.MaxInt32, limit
				if w := s.peek(key).Windows[0]; w.Used == used {
					if _, told := look(cost); w.EmptyMs != told {
						t.Errorf("seed %d, case %d: it is empty in %d ms, to wait for %d", seed, n, w.EmptyMs, told)
					}
				}
			} else {
				s.reserve(key, reserved, ms(ttl), key)
			}
			_, told := look(cost)
			began := s.clock.ms
			for _, after := range []int64{told / 2, told - 1, told} {
				if after < 0 {
					continue
				}
				if end := began + ttl; began+after >= end {
					s.clock.ms = max(s.clock.ms, end)
					s.sweep(t)
				}
				s.clock.ms = began + after
				if allowed, left := look(cost); left != told-after || allowed != (left == 0) {
					t.Errorf("seed %d, case %d (%d ms into the window, %d used, %d reserved for %d ms, %d cancelled, "+
						"a look for %d): to wait for %d ms, and after %d ms for %d more", seed, n, at, used,
						reserved, ttl, cancelled, cost, told, after, left)
				}
			}
		}
	})
}
