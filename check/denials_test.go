package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// process is one that checks, over a prefix of its own, and by a clock that the test moves: it is
// Redis's and the process's. Marks are read at once, and not beside the caller.
type process struct {
	*Service
	rules *windows.Rules
	// other is another process's way to the same counters.
	other   *windows.Redis
	metrics *Metrics
}

func newProcess(t testing.TB, c *redis.Client, clock *int64, denials int, rules *windows.Rules) *process {
	t.Helper()
	keys, err := stream.NewKeys(streamtest.Prefix(t), 8)
	testkit.Must(t, err)
	p := &process{rules: rules, metrics: NewMetrics(prometheus.NewRegistry())}
	counter := windows.NewRedis(c, keys)
	counter.Now = func() int64 { return *clock }
	p.other = windows.NewRedis(c, keys)
	p.other.Now = counter.Now
	p.Service, err = NewService(Config{Counter: counter, Rules: func() *windows.Rules { return p.rules },
		Timeout: 20 * time.Second, Denials: denials, Metrics: p.metrics,
		Now: func() time.Time { return time.UnixMilli(*clock) }})
	testkit.Must(t, err)
	p.denials.start = func(read func()) { read() }
	return p
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

// The same timeline, with denials from memory and without, allows the same checks. The wait
// told from memory is never longer, and the same where nothing was charged meanwhile.
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
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	timelines, fromMemory := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		clock := int64(1_700_000_000_000)
		with, without := newProcess(t, c, &clock, 4, rules[0]), newProcess(t, c, &clock, 0, rules[0])
		key := rapid.SampledFrom(keys)
		cost := rapid.Int64Range(1, 4)
		for range rapid.IntRange(10, 30).Draw(rt, "steps") {
			k, n := key.Draw(rt, "key"), cost.Draw(rt, "cost")
			what := rapid.IntRange(0, 19).Draw(rt, "what")
			for i := range 1 + 3*min(1, what/8) { // checks come in bursts
				if clock += rapid.Int64Range(0, 30).Draw(rt, "passes"); what == 19 && i == 0 {
					clock += rapid.Int64Range(0, 2000).Draw(rt, "rests")
				}
				fromMemory += step(t, rt, with, without, rules, what, k, n)
			}
			if what < 3 { // another process gave units back: known within freshFor
				clock += freshFor.Milliseconds()
			}
		}
	})
	if fromMemory < 5*timelines { // about eleven in each
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// step does the same in both processes, and gives how many answers came from memory.
func step(t testing.TB, rt *rapid.T, with, without *process, rules []*windows.Rules, what int, key string,
	cost int64) (fromMemory int) {
	ctx := context.Background()
	plan := with.rules.Match(key)
	reqs := []api.CheckRequest{{Key: key, Cost: cost}}
	switch what {
	case 0, 1, 2, 3, 4, 5:
		for _, p := range []*process{with, without} {
			var err error
			switch what {
			case 0:
				_, err = p.other.Reset(ctx, plan, key)
			case 1, 2:
				_, _, err = p.other.Refund(ctx, plan, key, cost)
			case 3:
				_, err = p.Reset(ctx, key)
			case 4:
				_, err = p.Decide(ctx, []Request{{Plan: plan, Key: key, Cost: cost, Refund: true}})
			case 5: // another process charges
				_, err = p.other.Check(ctx, []windows.Request{{Plan: plan, Key: key, Cost: cost}})
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
		a := with.CheckEach(ctx, append(reqs, api.CheckRequest{Key: "a"}))
		b := without.CheckEach(ctx, append(reqs, api.CheckRequest{Key: "a"}))
		for i := range a {
			fromMemory += compare(rt, api.ChecksAnswer{Allowed: a[i].Allowed,
				Checks: []api.CheckAnswer{a[i].CheckAnswer}},
				api.ChecksAnswer{Allowed: b[i].Allowed, Checks: []api.CheckAnswer{b[i].CheckAnswer}}, a[i].Err,
				b[i].Err)
		}
		return fromMemory
	}
	a, errA := with.CheckAll(ctx, reqs)
	b, errB := without.CheckAll(ctx, reqs)
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

// others are processes that lease, reserve, settle and sweep units of the key k while one remembers its denials.
type others struct {
	*process
	*rapid.T
	clock  *int64
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
	ask := windows.Renewal{Used: rapid.Int64Range(0, had).Draw(o.T, "used"),
		Want: rapid.SampledFrom([]int64{0, 1, 3, 16, 20}).Draw(o.T, "want")}
	ask.Keep = rapid.Int64Range(0, min(had-ask.Used, ask.Want)).Draw(o.T, "keep")
	got, err := o.other.RenewLease(context.Background(), o.plan, windows.Lease{Key: "k", Units: had,
		TTL: o.lasts("lease lasts", 125, 400, 700), ID: o.other.ReservationID(id, []windows.Request{{Key: "k"}})}, ask)
	testkit.Must(o.T, err)
	o.leased[id] = got.Units
}

func (o *others) reserve(cost int64) {
	o.ids++
	requests := []windows.Request{{Plan: o.plan, Key: "k", Cost: cost}}
	id := o.other.ReservationID(fmt.Sprint("r", o.ids), requests)
	got, err := o.other.Reserve(context.Background(), id, o.lasts("reserved for", 100, 400, 2000), "-", requests)
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
	op := rapid.SampledFrom([]lua.SettleOp{lua.Commit, lua.Cancel, lua.Renew}).Draw(o.T, "how")
	charge := rapid.Int64Range(0, one.units).Draw(o.T, "charge")
	_, err := o.other.Settle(context.Background(), o.rules, one.id, []int{o.other.Partition("k")}, op,
		o.lasts("renewed for", 20, 300, 1500), func(string, int64) int64 { return charge }, "c")
	testkit.Must(o.T, err)
	if op != lua.Renew {
		o.open = slices.Delete(o.open, i, i+1)
	}
}

func (o *others) sweep() {
	p := o.other.Partition("k")
	fields, err := o.other.Due(context.Background(), p, *o.clock, 1000)
	testkit.Must(o.T, err)
	_, _, err = o.other.Sweep(context.Background(), p, o.rules, fields)
	testkit.Must(o.T, err)
}

// check has the one process check, and tells whether it denied from memory. Redis denies then.
func (o *others) check(cost int64) bool {
	a, err := o.Check(context.Background(), api.CheckRequest{Key: "k", Cost: cost})
	testkit.Must(o.T, err)
	if a.Source != api.SourceCache {
		return false
	}
	look, err := o.other.Check(context.Background(), []windows.Request{{Plan: o.plan, Key: "k", Cost: cost,
		Mode: api.ModeLook}})
	testkit.Must(o.T, err)
	if look.Allowed {
		o.Fatalf("denied from memory, and Redis has room: %+v, %+v", a, look.Items)
	}
	return true
}

// Whatever becomes of leases and reservations, no denial from memory is false for longer than marks may take.
func TestReservationsLeaveDenialsTrue(t *testing.T) {
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	timelines, fromMemory := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		// A day ends 1.5 s after the second one.
		clock := rapid.SampledFrom([]int64{1_700_000_000_000, 1_700_006_398_500}).Draw(rt, "start")
		rules, err := windows.NewRules(drawnRules(rt))
		if err != nil {
			rt.Skip(err.Error())
		}
		o := &others{process: newProcess(t, c, &clock, 4, rules), T: rt, clock: &clock, leased: map[string]int64{}}
		o.plan = rules.Match("k")
		for range rapid.IntRange(40, 150).Draw(rt, "steps") {
			clock += rapid.Int64Range(0, 60).Draw(rt, "passes")
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
			clock += freshFor.Milliseconds()
		}
	})
	if fromMemory < timelines {
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// Units that a lease charges before it would have expired may leave earlier than a denial was told.
func TestALeaseThatIsChargedSoon(t *testing.T) {
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	for _, algorithm := range windows.Algorithms {
		for _, window := range []time.Duration{400 * time.Millisecond, time.Second} {
			for _, cost := range []int64{10, 19} {
				t.Run(fmt.Sprint(algorithm, " ", window, " cost ", cost), func(t *testing.T) {
					r := rule("*", windows.Window{Limit: 20, Per: window})
					r.Algorithm = algorithm
					chargedSoon(t, c, r, cost)
				})
			}
		}
	}
}

// chargedSoon has a check denied while most is leased, and soon charged, and compares with Redis until it is not.
func chargedSoon(t *testing.T, c *redis.Client, r *windows.Rule, cost int64) {
	clock := int64(1_700_000_000_000) - 100 // of a fixed window
	p := newProcess(t, c, &clock, 4, rulesOf(t, r))
	check := func(cost int64) bool {
		a, err := p.Check(t.Context(), api.CheckRequest{Key: "k", Cost: cost})
		testkit.Must(t, err)
		return a.Allowed
	}
	for range 3 { // until the mark is known
		check(20)
		clock++
	}
	clock += 3000
	check(1)
	look := windows.Request{Plan: p.rules.Match("k"), Key: "k", Cost: cost, Mode: api.ModeLook}
	lease := windows.Lease{Key: "k", TTL: 300 * time.Millisecond,
		ID: p.other.ReservationID("a", []windows.Request{look})}
	renew := func(ask windows.Renewal) {
		got, err := p.other.RenewLease(t.Context(), look.Plan, lease, ask)
		if err != nil || !got.Stood || got.Units != ask.Want {
			t.Fatalf("%+v, %v", got, err)
		}
		lease.Units = got.Units
	}
	renew(windows.Renewal{Want: 14})
	if check(cost) {
		t.Fatal("most is leased")
	}
	renew(windows.Renewal{Used: 13, Want: 1})
	clock += freshFor.Milliseconds()
	for end := clock + 4000; clock < end; clock += 5 {
		allowed, err := p.other.Check(t.Context(), []windows.Request{look})
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

// Units that are free at the end of their reservation are so earlier where that is renewed to end earlier.
func TestAReservationThatIsToEndEarlier(t *testing.T) {
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	clock := int64(1_700_000_000_000)
	r := rule("*", windows.Window{Limit: 10, Per: time.Minute})
	r.OnExpire = windows.OnExpireFree
	p := newProcess(t, c, &clock, 4, rulesOf(t, r))
	requests := []windows.Request{{Plan: p.rules.Match("k"), Key: "k", Cost: 6}}
	id := p.other.ReservationID("a", requests)
	_, err := p.other.Reserve(t.Context(), id, 900*time.Millisecond, "-", requests)
	testkit.Must(t, err)
	check := func() api.CheckAnswer {
		a, err := p.Check(t.Context(), api.CheckRequest{Key: "k", Cost: 5})
		testkit.Must(t, err)
		return a
	}
	for range 4 { // until the mark is known
		check()
		clock++
	}
	if a := check(); a.Allowed || a.Source != api.SourceCache {
		t.Fatalf("%+v", a)
	}
	_, err = p.other.Settle(t.Context(), p.rules, id, []int{p.other.Partition("k")}, lua.Renew, 20*time.Millisecond,
		nil, "-")
	testkit.Must(t, err)
	clock += freshFor.Milliseconds() + 10
	if a := check(); !a.Allowed {
		t.Errorf("%+v once it has ended", a)
	}
}

// one is a process whose key user:1, of 10 a minute, has spent them, and what Redis was asked since.
func one(t *testing.T, change ...func(*windows.Rule)) (*process, *int64, func() int) {
	t.Helper()
	clock := int64(1_700_000_000_000)
	c := streamtest.Connect(t, streamtest.Redis(t))
	r := rule("user:*", windows.Window{Limit: 10, Per: time.Minute})
	for _, f := range change {
		f(r)
	}
	p := newProcess(t, c, &clock, 100, rulesOf(t, r))
	asked := &scripts{}
	c.AddHook(asked)
	a, err := p.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 10})
	testkit.Must(t, err)
	if !a.Allowed {
		t.Fatalf("%+v", a)
	}
	return p, &clock, func() int { n := asked.n; asked.n = 0; return n }
}

// scripts counts those that are run.
type scripts struct{ n int }

func (s *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			s.n++
		}
		return next(ctx, cmd)
	}
}

func (s *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (p *process) ask(t testing.TB, cost int64) api.CheckAnswer {
	t.Helper()
	a, err := p.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: cost})
	testkit.Must(t, err)
	return a
}

// known makes the process know that user:1 is denied, and the mark of its partition.
func (p *process) known(t testing.TB, clock *int64) {
	t.Helper()
	for range 3 { // the first answer from memory reads a mark that was not known
		p.ask(t, 1)
		*clock++
	}
	if a := p.ask(t, 1); a.Source != api.SourceCache {
		t.Fatalf("%+v, expected an answer from memory", a)
	}
}

// A key that knocks on and on costs Redis one check a second, and the answers are as Redis gives them.
func TestADeniedKeyIsAnsweredFromMemory(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	asked()
	for range 1000 {
		*clock += 5
		a := p.ask(t, 1)
		wait := 1_700_000_060_000 - *clock
		w := a.Windows[0]
		if a.Allowed || a.RetryAfterMs != wait || w.Used != 10 || w.Remaining != 0 || w.ResetMs != wait ||
			w.NextFreeMs != wait || a.Rule != "r-user" || a.Cost != 1 {
			t.Fatalf("%+v, expected a wait of %d ms", a, wait)
		}
	}
	if n := asked(); n < 4 || n > 7 {
		t.Errorf("Redis was asked %d times in 5 s", n)
	}
	got := testutil.ToFloat64(p.metrics.checks.WithLabelValues("r-user", "cache_denied"))
	if denied := testutil.ToFloat64(p.metrics.checks.WithLabelValues("r-user", "denied")); got < 990 || denied > 12 {
		t.Errorf("the metric says %v from memory, %v denied by Redis", got, denied)
	}
	*clock = 1_700_000_060_000
	if a := p.ask(t, 10); !a.Allowed {
		t.Errorf("when the wait has passed: %+v", a)
	}
}

// Less than what was denied may be admitted; as much and more is denied.
func TestOfWhichCostADenialIs(t *testing.T) {
	p, clock, asked := one(t)
	_, err := p.Reset(t.Context(), "user:1")
	testkit.Must(t, err)
	*clock++
	p.ask(t, 6)
	for range 3 {
		p.ask(t, 5)
		*clock++
	}
	asked()
	if a := p.ask(t, 7); a.Source != api.SourceCache || asked() != 0 {
		t.Errorf("more than what is denied: %+v", a)
	}
	if a := p.ask(t, 4); !a.Allowed || a.Source != api.SourceRedis {
		t.Errorf("less than what is denied: %+v", a)
	}
}

// What another process gives back is known within freshFor.
func TestOtherProcessesGiveBack(t *testing.T) {
	for name, free := range map[string]func(p *process) error{
		"reset": func(p *process) error {
			_, err := p.other.Reset(t.Context(), p.rules.Match("user:1"), "user:1")
			return err
		},
		"refund": func(p *process) error {
			_, _, err := p.other.Refund(t.Context(), p.rules.Match("user:1"), "user:1", 3)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, clock, _ := one(t)
			p.known(t, clock)
			testkit.Must(t, free(p))
			for since := time.Duration(0); ; since += time.Millisecond {
				if a := p.ask(t, 1); a.Allowed {
					break
				}
				if since >= freshFor {
					t.Fatalf("still denied %v after", since)
				}
				*clock++
			}
		})
	}
}

// What this process gives back is known at once.
func TestThisProcessGivesBack(t *testing.T) {
	for name, free := range map[string]func(p *process) error{
		"reset": func(p *process) error { _, err := p.Reset(t.Context(), "user:1"); return err },
		"refund": func(p *process) error {
			_, err := p.Decide(t.Context(), []Request{{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 3,
				Refund: true}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, clock, _ := one(t)
			p.known(t, clock)
			testkit.Must(t, free(p))
			if a := p.ask(t, 1); !a.Allowed {
				t.Errorf("%+v", a)
			}
		})
	}
}

// Where nobody can tell whether something was given back, Redis is asked.
func TestMarksThatCannotBeRead(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	p.denials.counter = noMarks{p.denials.counter}
	asked()
	for range 20 {
		*clock += 5
		p.ask(t, 1)
	}
	if n := asked(); n < 2 || n > 4 {
		t.Errorf("in 100 ms Redis was asked %d times, expected once in 40 ms", n)
	}
}

type noMarks struct{ marks }

func (noMarks) Freed(context.Context, []int) ([]string, error) { return nil, errors.New("no") }

// Who asks more rarely than marks hold costs Redis a reading, and not a check.
func TestADenialWhoseMarkIsOldAwaitsIt(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	asked()
	for range 100 {
		*clock += 50
		if a := p.ask(t, 1); a.Allowed || a.RetryAfterMs != 1_700_000_060_000-*clock {
			t.Fatalf("%+v", a)
		}
	}
	if n := asked(); n < 4 || n > 7 {
		t.Errorf("Redis was asked %d times in 5 s", n)
	}
	*clock += 50
	_, err := p.other.Reset(t.Context(), p.rules.Match("user:1"), "user:1")
	testkit.Must(t, err)
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("after a reset by another process: %+v", a)
	}
}

// However lately other marks were read, those that a call waits for are read at once.
func TestOldMarksAreReadAtOnce(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	other := "user:2"
	for i := 3; p.config.Counter.Partition(other) == p.config.Counter.Partition("user:1"); i++ {
		other = fmt.Sprint("user:", i)
	}
	p.CheckEach(t.Context(), []api.CheckRequest{{Key: other, Cost: 10}})
	for range 10 { // until its mark is known too
		p.CheckEach(t.Context(), []api.CheckRequest{{Key: other}})
		*clock += 7
	}
	asked()
	for i := range 100 {
		*clock += 5
		p.ask(t, 1)
		if i%15 != 0 {
			continue
		}
		if a, err := p.Check(t.Context(), api.CheckRequest{Key: other}); err != nil || a.Source != api.SourceCache {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if n := asked(); n != 0 {
		t.Errorf("Redis was asked %d times", n)
	}
}

// Of several old denials of a call the first whose mark is known is enough.
func TestACallOfSeveralOldDenials(t *testing.T) {
	p, clock, asked := one(t)
	reqs := []api.CheckRequest{{Key: "user:2", Cost: 10}, {Key: "user:3", Cost: 10}, {Key: "user:4", Cost: 10}}
	for range 5 {
		p.CheckEach(t.Context(), reqs)
		*clock++
	}
	*clock += 50
	asked()
	all, err := p.CheckAll(t.Context(), reqs)
	testkit.Must(t, err)
	known := 0
	for _, a := range all.Checks {
		known += len(a.Windows)
	}
	if asked() != 0 || all.Allowed || known == 0 {
		t.Errorf("%+v", all)
	}
}

// marksRead is told when marks were read, before the reader is.
type marksRead struct {
	marks
	then func()
}

func (m marksRead) Freed(ctx context.Context, parts []int) ([]string, error) {
	got, err := m.marks.Freed(ctx, parts)
	m.then()
	return got, err
}

// A reading tells those whose call came before it what stood then, however long it takes; others once it is
// less than freshFor ago.
func TestAReadingThatTakesLong(t *testing.T) {
	p, clock, _ := one(t)
	p.known(t, clock)
	*clock += 50
	came := p.denials.now()
	p.denials.counter = marksRead{p.denials.counter, func() {
		*clock += freshFor.Milliseconds()
		_, err := p.other.Reset(t.Context(), p.rules.Match("user:1"), "user:1")
		testkit.Must(t, err)
	}}
	request := windows.Request{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 1}
	if reading, _ := p.denials.await(request, came); reading == nil {
		t.Error("the mark is not read")
	}
	if _, known := p.denials.lookup(request, came); known != certain {
		t.Error("it was denied when the call came")
	}
	if _, known := p.denials.lookup(request, came.Add(time.Millisecond)); known == certain {
		t.Error("denied, though the mark was read before the call came, and too long ago")
	}
}

// Who waits until the denial has ended was denied when he came, and is to wait for a millisecond at least.
func TestADenialThatEndsWhileItsMarkIsRead(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	for *clock = 1_700_000_059_500; *clock < 1_700_000_059_950; *clock += 5 {
		p.ask(t, 1)
	}
	*clock = 1_700_000_059_990
	p.denials.counter = marksRead{p.denials.counter, func() { *clock += 20 }}
	asked()
	if a := p.ask(t, 1); a.Allowed || a.RetryAfterMs < 1 || a.RetryAfterMs > 2 || asked() != 0 {
		t.Errorf("%+v", a)
	}
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("%+v", a)
	}
}

// heldMarks cannot be read, and says so only when the test ends.
type heldMarks struct {
	marks
	begun chan struct{}
	ends  <-chan struct{}
}

func (m heldMarks) Freed(context.Context, []int) ([]string, error) {
	close(m.begun)
	<-m.ends
	return nil, errors.New("no")
}

// Nobody waits for marks that could not be read the last time: Redis, which is asked, may be well.
func TestNobodyWaitsForMarksThatCannotBeRead(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	before := p.denials.counter
	p.denials.counter = noMarks{before}
	*clock += 50
	p.ask(t, 1)
	begun, ends := make(chan struct{}), make(chan struct{})
	defer close(ends)
	p.denials.counter = heldMarks{before, begun, ends}
	p.denials.start = func(read func()) {
		go read()
		<-begun
	}
	asked()
	for range 3 {
		*clock += 50
		if a := p.ask(t, 1); a.Source != api.SourceRedis {
			t.Errorf("%+v", a)
		}
	}
	if n := asked(); n != 3 {
		t.Errorf("Redis was asked %d times of 3", n)
	}
}

// Marks that do not come are awaited for a part of the time that a check may take: Redis, which is asked then, may be
// well.
func TestMarksThatDoNotCome(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	begun, ends := make(chan struct{}), make(chan struct{})
	defer close(ends)
	p.denials.counter = heldMarks{p.denials.counter, begun, ends}
	p.denials.start = func(read func()) {
		go read()
		<-begun
	}
	asked()
	for range 3 {
		*clock += 50
		if a := p.ask(t, 1); a.Allowed || a.Source != api.SourceRedis {
			t.Fatalf("%+v", a)
		}
	}
	*clock += 50
	request := windows.Request{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 1}
	if reading, _ := p.denials.await(request, p.denials.now()); reading != nil {
		t.Error("a reading is awaited that began 200 ms ago")
	}
	if n := asked(); n != 3 {
		t.Errorf("Redis was asked %d times of 3", n)
	}
}

// marksOfShards has each partition be a shard, of which one does not answer.
type marksOfShards struct {
	marks
	silent int
	ends   <-chan struct{}
}

func (m *marksOfShards) Shards() int          { return m.Partitions() }
func (m *marksOfShards) Shard(key string) int { return m.Partition(key) }

func (m *marksOfShards) Freed(ctx context.Context, parts []int) ([]string, error) {
	if parts[0] == m.silent {
		<-m.ends
	}
	return m.marks.Freed(ctx, parts)
}

// Of two keys of a call one is denied for certain, though the marks of the other's shard do not come.
func TestAShardWhoseMarksDoNotCome(t *testing.T) {
	for _, silent := range []string{"user:1", "user:2"} {
		p, clock, asked := one(t)
		ends := make(chan struct{})
		defer close(ends)
		shards := &marksOfShards{p.denials.counter, -1, ends}
		p.denials.counter, p.denials.shards = shards, make([]shardMarks, shards.Shards())
		if shards.Shard("user:1") == shards.Shard("user:2") {
			t.Fatal("they are in one shard")
		}
		reqs := []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}}
		for range 6 { // until both marks are known
			p.CheckEach(t.Context(), reqs)
			*clock += 10
		}
		*clock += 50
		shards.silent = shards.Shard(silent)
		p.denials.start = func(read func()) { go read() }
		asked()
		all, err := p.CheckAll(t.Context(), reqs)
		if n := asked(); err != nil || all.Allowed || n != 0 || all.Checks[0].Source != api.SourceCache {
			t.Errorf("the shard of %s is silent: Redis was asked %d times, %+v, %v", silent, n, all, err)
		}
	}
}

// counted counts readings.
type counted struct {
	marks
	n int
}

func (m *counted) Freed(ctx context.Context, parts []int) ([]string, error) {
	m.n++
	return m.marks.Freed(ctx, parts)
}

// Calls that do not await marks, and those that are decided without, have none read before it is time.
func TestMarksThatNobodyAwaits(t *testing.T) {
	p, clock, _ := one(t)
	reqs := make([]api.CheckRequest, p.config.Counter.Partitions()) // one in each
	for i, n := 0, 0; n < len(reqs); i++ {
		key := fmt.Sprint("user:", i)
		if at := p.config.Counter.Partition(key); reqs[at].Key == "" {
			reqs[at], n = api.CheckRequest{Key: key, Cost: 10}, n+1
		}
	}
	for range 6 { // until all marks are known
		p.CheckEach(t.Context(), reqs)
		*clock += 10
	}
	readings := &counted{marks: p.denials.counter}
	p.denials.counter = readings
	for i := range 100 { // each is old when it is asked for
		*clock += 10
		p.CheckEach(t.Context(), reqs[i%8:i%8+1])
	}
	if readings.n > 34 {
		t.Errorf("marks were read %d times in a second", readings.n)
	}
	*clock += 50
	if a, err := p.Check(t.Context(), reqs[0]); err != nil || a.Source != api.SourceCache {
		t.Errorf("%+v, %v", a, err)
	}
	*clock += 10
	readings.n = 0
	if all, err := p.CheckAll(t.Context(), []api.CheckRequest{reqs[1], reqs[0]}); err != nil || all.Allowed {
		t.Errorf("%+v, %v", all, err)
	}
	if readings.n > 0 {
		t.Error("marks were read of one key, and the other was enough")
	}
}

// An answer that Redis gave before a reset and that comes after it is not remembered.
func TestAnAnswerFromBeforeAReset(t *testing.T) {
	p, clock, _ := one(t)
	p.known(t, clock)
	plan := p.rules.Match("user:1")
	request := windows.Request{Plan: plan, Key: "user:1", Cost: 1}
	asked := p.denials.now()
	*clock++
	verdicts, err := p.config.Counter.CheckMany(t.Context(), [][]windows.Request{{request}})
	testkit.Must(t, err)
	*clock++
	_, err = p.Reset(t.Context(), "user:1")
	testkit.Must(t, err)
	*clock++
	p.denials.remember([][]windows.Request{{request}}, verdicts, asked)
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("%+v: the answer from before the reset was remembered", a)
	}
}

// Of another key of a denied call nothing is known, and its shadow rules are evaluated.
func TestACallOfSeveralKeys(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	asked()
	all, err := p.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:2"}, {Key: "user:1"}, {Key: "nobody"}})
	testkit.Must(t, err)
	if all.Allowed || all.RetryAfterMs == 0 || asked() != 0 {
		t.Fatalf("%+v", all)
	}
	if a := all.Checks[0]; a.Allowed || a.Source != api.SourceCache || len(a.Windows) != 0 || a.Note == "" {
		t.Errorf("the key that was not looked at: %+v", a)
	}
	if a := all.Checks[2]; !a.Allowed || a.Source != api.SourcePolicy {
		t.Errorf("the key without a rule: %+v", a)
	}
	if a, err := p.Check(t.Context(), api.CheckRequest{Key: "user:2", Cost: 10}); err != nil || !a.Allowed {
		t.Errorf("the other key was charged: %+v, %v", a, err)
	}
}

// What is remembered is bounded, and other rules are other denials.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	p, clock, asked := one(t)
	for i := range 300 {
		*clock++
		for range 2 {
			_, err := p.Check(t.Context(), api.CheckRequest{Key: fmt.Sprint("user:", i), Cost: 10})
			testkit.Must(t, err)
		}
	}
	if n := p.denials.keys.Len(); n != 100 {
		t.Errorf("%d keys are remembered, expected 100", n)
	}
	p.known(t, clock)
	p.rules = rulesOf(t, rule("user:*", windows.Window{Limit: 11, Per: time.Minute}))
	asked()
	if a := p.ask(t, 1); !a.Allowed || asked() != 1 {
		t.Errorf("under other rules: %+v", a)
	}
}

// What a shadow rule says is always true: a denial that it would have admitted is Redis's to
// give, and one that it would have denied holds as long as the wait of both.
func TestShadowRulesOfADeniedKey(t *testing.T) {
	for _, s := range []struct {
		limit  int64
		source api.Source
	}{{10, api.SourceCache}, {12, api.SourceRedis}} {
		shadow := rule("user:*", windows.Window{Limit: s.limit, Per: time.Minute})
		shadow.Shadow, shadow.Name = true, "watch"
		p, clock, _ := one(t)
		p.rules = rulesOf(t, shadow, rule("user:*", windows.Window{Limit: 10, Per: time.Minute}))
		for range 3 {
			p.ask(t, 1)
			*clock++
		}
		a := p.ask(t, 1)
		if a.Source != s.source || len(a.Shadow) != 1 || a.Shadow[0].Allowed != (s.limit > 10) {
			t.Errorf("beside a shadow rule of %d: %+v", s.limit, a)
		}
		all, err := p.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:1"}, {Key: "user:2"}})
		testkit.Must(t, err)
		if all.Allowed || len(all.Checks[1].Shadow) != 1 {
			t.Errorf("another key with a shadow rule: %+v", all)
		}
	}
}

// A denial holds from when it was asked for, less the millisecond of Redis's clock: Redis decided
// some time between the question and the answer.
func TestUntilWhenADenialHolds(t *testing.T) {
	p, clock, _ := one(t)
	asked := p.denials.now()
	p.denials.remember([][]windows.Request{{{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 1}}},
		[]windows.Verdict{{Items: []windows.KeyState{{RetryAfter: 50 * time.Millisecond}}}}, asked)
	*clock += 20
	p.denials.remember([][]windows.Request{{{Plan: p.rules.Match("user:1"), Key: "user:2", Cost: 1}}},
		[]windows.Verdict{{Items: []windows.KeyState{{RetryAfter: 50 * time.Millisecond}}}}, asked)
	for _, key := range []string{"user:1", "user:2"} {
		if d, ok := p.denials.keys.Peek(key); !ok || !d.until.Equal(asked.Add(49*time.Millisecond)) {
			t.Errorf("%s: %+v, expected 49 ms after the question", key, d)
		}
	}
}
