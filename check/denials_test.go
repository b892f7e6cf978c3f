package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// newService makes a Service over c, under its own prefix, with these rules and what else config has.
func newService(t testing.TB, c *redis.Client, config Config, rules ...*windows.Rule) *Service {
	t.Helper()
	keys, err := stream.NewKeys(streamtest.Prefix(t), 16)
	testkit.Must(t, err)
	config.Counter, config.Metrics = counters.New(c, keys), NewMetrics(prometheus.NewRegistry())
	config.Rules = windows.Fixed(rulesOf(t, rules...)).Rules
	s, err := NewService(config)
	testkit.Must(t, err)
	return s
}

func rulesOf(t testing.TB, rules ...*windows.Rule) *windows.Rules {
	t.Helper()
	r, err := windows.NewRules(rules)
	testkit.Must(t, err)
	return r
}

func rule(match string, ws ...windows.Window) *windows.Rule {
	return &windows.Rule{Name: "r-" + strings.Trim(match, ":*"), Match: match, Windows: ws}
}

// The same timeline, with denials from memory and without, allows the same checks. The wait in an answer from memory
// is never longer, and is the same if nothing was charged in the meantime.
func TestDenialsFromMemoryAllowTheSame(t *testing.T) {
	shadow := rule("s:*", windows.Window{Limit: 3, Per: 100 * time.Millisecond})
	shadow.Shadow, shadow.Name = true, "watch"
	sets := func(limit int64) *windows.Rules {
		zset := rule("z:*", windows.Window{Limit: limit, Per: 300 * time.Millisecond})
		zset.Algorithm = "sliding-log-zset"
		pair := rule("p:*", windows.Window{Limit: limit, Per: 200 * time.Millisecond})
		pair.Algorithm = "sliding-counter"
		return rulesOf(t, zset, pair, shadow, rule("s:*", windows.Window{Limit: limit, Per: 500 * time.Millisecond}),
			rule("*", windows.Window{Limit: limit, Per: 100 * time.Millisecond},
				windows.Window{Limit: 3 * limit, Per: 2 * time.Second}))
	}
	rules := []*windows.Rules{sets(4), sets(6)}
	keys := []string{"a", "b", "z:1", "p:1", "s:1"}
	c := streamtest.AnyRedis(t)
	timelines, fromMemory, prefix := 0, 0, streamtest.Prefix(t)
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		with := newProcesses(rt, c, fmt.Sprint(prefix, "-with-", timelines), 4, rules[0])
		without := newProcesses(rt, c, fmt.Sprint(prefix, "-without-", timelines), 0, rules[0])
		with.start()
		without.start()
		key := rapid.SampledFrom(keys)
		cost := rapid.Int64Range(1, 4)
		for range rapid.IntRange(10, 30).Draw(rt, "steps") {
			k, n := key.Draw(rt, "key"), cost.Draw(rt, "cost")
			what := rapid.IntRange(0, 19).Draw(rt, "what")
			for i := range 1 + 3*min(1, what/8) { // checks come in bursts
				if with.clock += rapid.Int64Range(0, 30).Draw(rt, "passes"); what == 19 && i == 0 {
					with.clock += rapid.Int64Range(0, 2000).Draw(rt, "rests")
				}
				without.clock = with.clock
				fromMemory += step(t, rt, with, without, rules, what, k, n)
			}
			if what < 3 { // another process gave units back: known within freshFor
				with.clock += freshFor.Milliseconds()
			}
		}
	})
	if !testing.Short() && fromMemory < 5*timelines { // about eleven in each
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// step does the same in both processes, and returns how many answers came from memory.
func step(t testing.TB, rt *rapid.T, with, without *processes, rules []*windows.Rules, what int, key string,
	cost int64) (fromMemory int) {
	ctx := context.Background()
	plan := with.rules.Match(key)
	reqs := []api.CheckRequest{{Key: key, Cost: cost}}
	switch what {
	case 0, 1, 2, 3, 4, 5:
		for _, p := range []*processes{with, without} {
			one := p.all[0]
			var err error
			switch what {
			case 0:
				_, err = p.other.Reset(ctx, plan, key)
			case 1, 2:
				_, _, err = p.other.Refund(ctx, plan, key, cost)
			case 3:
				_, err = one.Reset(ctx, key)
			case 4:
				_, err = one.Decide(ctx, []Request{{Plan: plan, Key: key, Cost: cost, Refund: true}})
			case 5: // another process charges
				_, err = p.other.Check(ctx, []counters.Request{{Plan: plan, Key: key, Cost: cost}})
			}
			testkit.Must(t, err)
		}
		return 0
	case 6:
		next := rules[0]
		if with.rules == next {
			next = rules[1]
		}
		with.rules, without.rules = next, next
		return 0
	case 7:
		reqs = append(reqs, api.CheckRequest{Key: "b", Cost: 1}, api.CheckRequest{Key: "a", Cost: 1})
	case 8, 9:
		a := with.all[0].CheckEach(ctx, append(reqs, api.CheckRequest{Key: "a"}))
		b := without.all[0].CheckEach(ctx, append(reqs, api.CheckRequest{Key: "a"}))
		for i := range a {
			fromMemory += compare(rt, api.ChecksAnswer{Allowed: a[i].Allowed,
				Checks: []api.CheckAnswer{a[i].CheckAnswer}},
				api.ChecksAnswer{Allowed: b[i].Allowed, Checks: []api.CheckAnswer{b[i].CheckAnswer}}, a[i].Err,
				b[i].Err)
		}
		return fromMemory
	}
	a, errA := with.all[0].CheckAll(ctx, reqs)
	b, errB := without.all[0].CheckAll(ctx, reqs)
	return compare(rt, a, b, errA, errB)
}

func compare(rt *rapid.T, a, b api.ChecksAnswer, errA, errB error) (fromMemory int) {
	if fmt.Sprint(errA) != fmt.Sprint(errB) || a.Allowed != b.Allowed || a.RetryAfterMs > b.RetryAfterMs {
		rt.Fatalf("with memory %+v %v, without %+v %v", a, errA, b, errB)
	}
	for i := range a.Checks {
		x, y := a.Checks[i], b.Checks[i]
		if x.Source == api.SourceCache {
			fromMemory++
		}
		if x.Rule != y.Rule || x.Allowed != y.Allowed || x.RetryAfterMs > y.RetryAfterMs {
			rt.Fatalf("with memory %+v, without %+v", x, y)
		}
		if x.Source != api.SourceCache || len(x.Windows) == 0 {
			continue
		}
		for n := range x.Shadow {
			if x.Shadow[n].Allowed != y.Shadow[n].Allowed {
				rt.Fatalf("the shadow rule says %+v with memory, %+v without", x, y)
			}
		}
	}
	return fromMemory
}

// spent returns a process whose key user:1 has spent its 10 units a minute, and the calls of Redis since then.
func spent(t *testing.T) (*processes, *process, func() int) {
	t.Helper()
	c := streamtest.AnyRedis(t)
	l := newProcesses(t, c, streamtest.Prefix(t), 100, rulesOf(t, rule("user:*", windows.Window{Limit: 10,
		Per: time.Minute})))
	one, asked := l.start(), countScripts(c)
	l.ask(one, "user:1", 10)
	return l, one, asked
}

// countScripts returns a function that returns how many scripts were run since its last call.
func countScripts(c *redis.Client) func() int {
	var n atomic.Int64
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if streamtest.IsScript(cmd) {
			n.Add(1)
		}
		return next(ctx, cmd)
	}))
	return func() int { return int(n.Swap(0)) }
}

// A denial holds from the time when it was asked for, less the millisecond of Redis's clock: Redis decided at some
// time between the request and the answer. So no wait ends later than Redis's.
func TestUntilWhenADenialHolds(t *testing.T) {
	l, p, _ := spent(t)
	asked := p.denials.now()
	for _, key := range []string{"user:1", "user:2"} { // answered at once, and after 10 ms
		request := counters.Request{Plan: l.rules.Match("user:1"), Key: key, Cost: 1}
		p.denials.remember([][]counters.Request{{request}},
			[]counters.Verdict{{Items: []windows.KeyState{{RetryAfter: 50 * time.Millisecond}}}}, asked)
		l.clock += 10
		if d, ok := p.denials.keys.Peek(key); !ok || !d.until.Equal(asked.Add(49*time.Millisecond)) {
			t.Errorf("%s: %+v, expected 49 ms after the question", key, d)
		}
		now := p.denials.now()
		left := asked.Add(49 * time.Millisecond).Sub(now)
		if got, known := p.denials.lookup(request, now); known != certain || got.RetryAfter != left {
			t.Errorf("%s: %v, certainty %d, expected %v", key, got.RetryAfter, known, left)
		}
	}
}

// others are processes that lease, reserve, settle and sweep units of the key k while one remembers its denials.
type others struct {
	*processes
	*rapid.T
	one    *process
	plan   *windows.Plan
	leased map[string]int64 // lease → its units
	open   []held
	ids    int
}

type held struct {
	id    string
	units int64
}

// drawnRules are one rule of up to three windows, of several algorithms maybe, and maybe a shadow rule.
func drawnRules(rt *rapid.T) []*windows.Rule {
	algorithms, pers := rapid.SampledFrom(windows.Algorithms), rapid.SampledFrom([]int64{300, 450, 700, 1000, 1300})
	window := func(limit int64, what string) windows.Window {
		return windows.Window{Limit: limit, Per: time.Duration(pers.Draw(rt, what)) * time.Millisecond}
	}
	r := rule("*", window(rapid.Int64Range(20, 28).Draw(rt, "limit"), "window"))
	r.Algorithm = algorithms.Draw(rt, "algorithm")
	r.OnExpire = rapid.SampledFrom([]windows.OnExpire{windows.OnExpireCharge, windows.OnExpireFree}).Draw(rt, "expired")
	if w := window(rapid.Int64Range(20, 28).Draw(rt, "second limit"), "second"); w.Per != r.Windows[0].Per {
		if rapid.Bool().Draw(rt, "of another algorithm") {
			w.Algorithm = algorithms.Draw(rt, "its algorithm")
		}
		r.Windows = append(r.Windows, w)
	}
	if rapid.IntRange(0, 4).Draw(rt, "calendar") == 0 {
		w, err := windows.CalendarWindow(30, "day", "", "")
		testkit.Must(rt, err)
		r.Windows = append(r.Windows, w)
	}
	if rapid.IntRange(0, 3).Draw(rt, "shadow") > 0 {
		return []*windows.Rule{r}
	}
	shadow := rule("*", window(8, "of the shadow rule"))
	shadow.Shadow, shadow.Name, shadow.Algorithm = true, "watch", algorithms.Draw(rt, "its algorithm")
	return []*windows.Rule{shadow, r}
}

func (o *others) lasts(what string, of ...int64) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(o.T, what)) * time.Millisecond
}

// renew renews a lease, which may have ended long ago.
func (o *others) renew() {
	id := rapid.SampledFrom([]string{"a", "b"}).Draw(o.T, "lease")
	had := o.leased[id]
	store := reservations.New(o.other)
	ask := api.LeaseRequest{Key: "k", ID: store.ID(id, []counters.Request{{Key: "k"}}), Had: had,
		Used: rapid.Int64Range(0, had).Draw(o.T, "used"),
		Want: rapid.SampledFrom([]int64{0, 1, 3, 16, 20}).Draw(o.T, "want")}
	ask.Keep = rapid.Int64Range(0, min(had-ask.Used, ask.Want)).Draw(o.T, "keep")
	got, err := store.RenewLease(context.Background(), o.plan, o.lasts("lease lasts", 125, 400, 700), ask)
	testkit.Must(o.T, err)
	o.leased[id] = got.Units
}

func (o *others) reserve(cost int64) {
	o.ids++
	requests := []counters.Request{{Plan: o.plan, Key: "k", Cost: cost}}
	store := reservations.New(o.other)
	id := store.ID(fmt.Sprint("r", o.ids), requests)
	got, err := store.Reserve(context.Background(), id, o.lasts("reserved for", 100, 400, 2000), "-", requests)
	testkit.Must(o.T, err)
	if got.Allowed {
		o.open = append(o.open, held{id, cost})
	}
}

func (o *others) settle() {
	if len(o.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(o.open)-1).Draw(o.T, "which")
	one := o.open[i]
	ops := []reservations.SettleOp{reservations.Commit, reservations.Cancel, reservations.Renew}
	op := rapid.SampledFrom(ops).Draw(o.T, "how")
	charge := rapid.Int64Range(0, one.units).Draw(o.T, "charge")
	_, err := reservations.New(o.other).Settle(context.Background(), o.rules, one.id, []int{o.other.Partition("k")}, op,
		o.lasts("renewed for", 20, 300, 1500), func(string, int64) int64 { return charge })
	testkit.Must(o.T, err)
	if op != reservations.Renew {
		o.open = slices.Delete(o.open, i, i+1)
	}
}

// check makes the one process check, and returns whether it denied from memory. Then Redis denies too.
func (o *others) check(cost int64) bool {
	a, err := o.one.Check(context.Background(), api.CheckRequest{Key: "k", Cost: cost})
	testkit.Must(o.T, err)
	if a.Source != api.SourceCache {
		return false
	}
	look, err := o.other.Check(context.Background(), []counters.Request{{Plan: o.plan, Key: "k", Cost: cost,
		Mode: api.ModeLook}})
	testkit.Must(o.T, err)
	if look.Allowed {
		o.Fatalf("denied from memory, and Redis has room: %+v, %+v", a, look.Items)
	}
	return true
}

// No denial from memory is false for longer than marks may take, under any order of leases and reservations.
func TestReservationsLeaveDenialsTrue(t *testing.T) {
	c := streamtest.AnyRedis(t)
	timelines, fromMemory, prefix := 0, 0, streamtest.Prefix(t)
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		// A day ends 1.5 s after the second one.
		start := rapid.SampledFrom([]int64{beginning, 1_700_006_398_500}).Draw(rt, "start")
		rules, err := windows.NewRules(drawnRules(rt))
		if err != nil {
			rt.Skip(err.Error())
		}
		o := &others{processes: newProcesses(rt, c, fmt.Sprint(prefix, "-", timelines), 4, rules), T: rt,
			leased: map[string]int64{}}
		o.clock, o.one = start, o.start()
		o.plan = rules.Match("k")
		for range rapid.IntRange(40, 150).Draw(rt, "steps") {
			o.clock += rapid.Int64Range(0, 60).Draw(rt, "passes")
			cost := rapid.SampledFrom([]int64{1, 4, 9, 14, 18, 20}).Draw(rt, "cost")
			switch rapid.IntRange(0, 11).Draw(rt, "what") {
			case 0, 1, 2:
				o.renew()
			case 3:
				o.reserve(cost)
			case 4:
				o.settle()
			case 5:
				o.sweep()
			default:
				if o.check(cost) {
					fromMemory++
				}
				continue
			}
			o.clock += freshFor.Milliseconds()
		}
	})
	if !testing.Short() && fromMemory < timelines { // a few draws may have none
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// Units that a lease charges before it would have expired may leave earlier than a denial said.
func TestALeaseThatIsChargedSoon(t *testing.T) {
	c := streamtest.AnyRedis(t)
	for _, algorithm := range windows.Algorithms {
		r := rule("*", windows.Window{Limit: 20, Per: 400 * time.Millisecond})
		r.Algorithm = algorithm
		t.Run(algorithm, func(t *testing.T) { chargedSoon(t, c, r, 10) })
	}
}

// chargedSoon makes a check that is denied while most units are leased, and soon charged. It compares with Redis
// until the check is not denied any more.
func chargedSoon(t *testing.T, c *redis.Client, r *windows.Rule, cost int64) {
	p := newProcesses(t, c, streamtest.Prefix(t), 4, rulesOf(t, r))
	p.clock = beginning - 100 // of a fixed window
	one := p.start()
	check := func(cost int64) bool {
		a, err := one.Check(t.Context(), api.CheckRequest{Key: "k", Cost: cost})
		testkit.Must(t, err)
		return a.Allowed
	}
	for range 3 { // until the mark is known
		check(20)
		p.clock++
	}
	p.clock += 3000
	check(1)
	look := counters.Request{Plan: p.rules.Match("k"), Key: "k", Cost: cost, Mode: api.ModeLook}
	renew := func(had, used, want int64) {
		store := reservations.New(p.other)
		got, err := store.RenewLease(t.Context(), look.Plan, 300*time.Millisecond, api.LeaseRequest{Key: "k",
			ID: store.ID("a", []counters.Request{look}), Had: had, Used: used, Want: want})
		if err != nil || !got.Valid || got.Units != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	renew(0, 0, 14)
	if check(cost) {
		t.Fatal("most is leased")
	}
	renew(14, 13, 1)
	p.clock += freshFor.Milliseconds()
	for end := p.clock + 4000; p.clock < end; p.clock += 5 {
		allowed, err := p.other.Check(t.Context(), []counters.Request{look})
		testkit.Must(t, err)
		if got := check(cost); got != allowed.Allowed {
			t.Fatalf("allowed: %v, and by Redis: %v", got, allowed.Allowed)
		}
		if allowed.Allowed {
			return
		}
	}
	t.Error("denied after all has left")
}
