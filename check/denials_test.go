package check

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// process is a process that checks, under its own prefix, and by a clock that the test moves. Redis and the process
// have the same clock. Marks are read at once, in the caller's goroutine.
type process struct {
	*Service
	rules *windows.Rules
	// other is another process's way to the same counters.
	other   *counters.Redis
	metrics *Metrics
}

func newProcess(t testing.TB, c *redis.Client, clock *int64, denials int, rules *windows.Rules) *process {
	t.Helper()
	keys, err := stream.NewKeys(streamtest.Prefix(t), 8)
	testkit.Must(t, err)
	p := &process{rules: rules, metrics: NewMetrics(prometheus.NewRegistry())}
	counter := counters.New(c, keys)
	counter.Now = func() int64 { return *clock }
	p.other = counters.New(c, keys)
	p.other.Now = counter.Now
	p.Service, err = NewService(Config{Counter: counter, Rules: func() *windows.Rules { return p.rules },
		Timeout: 20 * time.Second, Denials: denials, Metrics: p.metrics,
		Now: func() time.Time { return time.UnixMilli(*clock) }})
	testkit.Must(t, err)
	p.denials.start = func(read func()) { read() }
	return p
}

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
	if !testing.Short() && fromMemory < 5*timelines { // about eleven in each
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// step does the same in both processes, and returns how many answers came from memory.
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

// one returns a process whose key user:1 has spent its 10 units a minute, and the calls of Redis since then.
func one(t *testing.T, change ...func(*windows.Rule)) (*process, *int64, func() int) {
	t.Helper()
	clock := int64(1_700_000_000_000)
	c := streamtest.Connect(t, streamtest.Redis(t))
	r := rule("user:*", windows.Window{Limit: 10, Per: time.Minute})
	for _, f := range change {
		f(r)
	}
	p := newProcess(t, c, &clock, 100, rulesOf(t, r))
	asked := countScripts(c)
	a, err := p.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 10})
	testkit.Must(t, err)
	if !a.Allowed {
		t.Fatalf("%+v", a)
	}
	return p, &clock, asked
}

// countScripts returns a function that returns how many scripts were run since its last call.
func countScripts(c *redis.Client) func() int {
	n := 0
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if streamtest.IsScript(cmd) {
			n++
		}
		return next(ctx, cmd)
	}))
	return func() (asked int) { asked, n = n, 0; return asked }
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

// A key that is asked for all the time costs Redis one check a second, and the answers are the same as those of
// Redis.
func TestADeniedKeyIsAnsweredFromMemory(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	asked()
	for range 1000 {
		*clock += 5
		a := p.ask(t, 1)
		wait := 1_700_000_060_000 - *clock
		w := a.Windows[0]
		if a.Allowed || a.RetryAfterMs != wait || w.Used != 10 || w.Remaining != 0 || w.EmptyMs != wait ||
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

// A lower cost than the denied one may be admitted; the same cost and higher ones are denied.
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

// A charge by this process can make the wait of a denied key longer. So Redis is asked again. A denial from before the
// charge is not remembered, even if it arrives later.
func TestAChargeEndsADenial(t *testing.T) {
	four := api.CheckRequest{Key: "user:1", Cost: 4}
	for name, charge := range map[string]func(p *process) (any, error){
		"check": func(p *process) (any, error) { return p.Check(t.Context(), four) },
		"charge": func(p *process) (any, error) {
			return p.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 5, Mode: api.ModeCharge})
		},
		"reservation": func(p *process) (any, error) {
			return p.Reserve(t.Context(), api.ReservationRequest{CheckRequest: four})
		},
		"lease": func(p *process) (any, error) { return p.Lease(api.LeaseRequest{Key: "user:1", Want: 3}) },
	} {
		p, clock, _ := one(t, func(r *windows.Rule) { r.Lease = 50 * time.Millisecond })
		_, err := p.Reset(t.Context(), "user:1")
		testkit.Must(t, err)
		*clock++
		p.ask(t, 6)
		before := p.denials.now()
		*clock++
		request := counters.Request{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 8}
		for range 3 {
			p.ask(t, 8)
			*clock++
		}
		if a := p.ask(t, 8); a.Source != api.SourceCache {
			t.Fatalf("%s: %+v, expected an answer from memory", name, a)
		}
		late, err := p.other.Check(t.Context(), []counters.Request{request})
		testkit.Must(t, err)
		asked := p.denials.now()
		*clock++
		if got, err := charge(p); err != nil {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		*clock++
		p.denials.remember([][]counters.Request{{request}}, []counters.Verdict{late}, asked)
		look, err := p.other.Check(t.Context(), []counters.Request{request})
		testkit.Must(t, err)
		if look.Items[0].RetryAfter <= time.Minute-p.denials.now().Sub(before) {
			t.Fatalf("%s: %+v, expected a longer wait", name, look.Items[0])
		}
		if a := p.ask(t, 8); a.Allowed || a.RetryAfterMs != look.Items[0].RetryAfter.Milliseconds() {
			t.Errorf("%s: %+v, expected to wait %v", name, a, look.Items[0].RetryAfter)
		}
	}
}

// So does a renewal: the reserved units stay for longer.
func TestARenewalEndsADenial(t *testing.T) {
	p, clock, _ := one(t)
	_, err := p.Reset(t.Context(), "user:1")
	testkit.Must(t, err)
	*clock++
	held, err := p.Reserve(t.Context(), api.ReservationRequest{
		CheckRequest: api.CheckRequest{Key: "user:1", Cost: 4}, TTLMs: 30_000})
	testkit.Must(t, err)
	for range 3 {
		p.ask(t, 8)
		*clock++
	}
	if a := p.ask(t, 8); a.Source != api.SourceCache || a.RetryAfterMs > 90_000 {
		t.Fatalf("%+v, expected an answer from memory", a)
	}
	_, err = p.Renew(t.Context(), held.ID, api.RenewRequest{TTLMs: time.Hour.Milliseconds()})
	testkit.Must(t, err)
	if a := p.ask(t, 8); a.Source != api.SourceRedis || a.RetryAfterMs < time.Hour.Milliseconds() {
		t.Errorf("%+v, expected to wait for an hour", a)
	}
}

// A process notices at once that it gave units back itself, and within freshFor that another process did.
func TestWhatIsGivenBackIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		within time.Duration
		free   func(p *process, plan *windows.Plan) error
	}{
		"reset by another": {freshFor, func(p *process, plan *windows.Plan) error {
			_, err := p.other.Reset(t.Context(), plan, "user:1")
			return err
		}},
		"refund by another": {freshFor, func(p *process, plan *windows.Plan) error {
			_, _, err := p.other.Refund(t.Context(), plan, "user:1", 3)
			return err
		}},
		"reset": {0, func(p *process, _ *windows.Plan) error { _, err := p.Reset(t.Context(), "user:1"); return err }},
		"refund": {0, func(p *process, plan *windows.Plan) error {
			_, err := p.Decide(t.Context(), []Request{{Plan: plan, Key: "user:1", Cost: 3, Refund: true}})
			return err
		}},
	} {
		p, clock, _ := one(t)
		p.known(t, clock)
		testkit.Must(t, c.free(p, p.rules.Match("user:1")))
		for since := time.Duration(0); !p.ask(t, 1).Allowed; since += time.Millisecond {
			if since >= c.within {
				t.Fatalf("%s: still denied %v after", name, since)
			}
			*clock++
		}
	}
}

// An answer that Redis gave before a reset, and that arrives after it, is not remembered.
func TestAnAnswerFromBeforeAReset(t *testing.T) {
	p, clock, _ := one(t)
	p.known(t, clock)
	plan := p.rules.Match("user:1")
	request := counters.Request{Plan: plan, Key: "user:1", Cost: 1}
	asked := p.denials.now()
	*clock++
	verdicts, err := p.config.Counter.CheckMany(t.Context(), [][]counters.Request{{request}})
	testkit.Must(t, err)
	*clock++
	_, err = p.Reset(t.Context(), "user:1")
	testkit.Must(t, err)
	*clock++
	p.denials.remember([][]counters.Request{{request}}, verdicts, asked)
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("%+v: the answer from before the reset was remembered", a)
	}
}

// Nothing is known about the other keys of a denied call, and their shadow rules are evaluated.
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

// The number of remembered denials is bounded, and after a change of the rules they are not used.
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

// The answer of a shadow rule is always true. If the shadow rule would have admitted a denied check, Redis must
// answer it. If it would have denied it too, the denial holds for as long as both waits.
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

// A denial holds from the time when it was asked for, less the millisecond of Redis's clock: Redis decided at some
// time between the request and the answer.
func TestUntilWhenADenialHolds(t *testing.T) {
	p, clock, _ := one(t)
	asked := p.denials.now()
	for _, key := range []string{"user:1", "user:2"} { // answered at once, and after 20 ms
		p.denials.remember([][]counters.Request{{{Plan: p.rules.Match("user:1"), Key: key, Cost: 1}}},
			[]counters.Verdict{{Items: []windows.KeyState{{RetryAfter: 50 * time.Millisecond}}}}, asked)
		*clock += 20
		if d, ok := p.denials.keys.Peek(key); !ok || !d.until.Equal(asked.Add(49*time.Millisecond)) {
			t.Errorf("%s: %+v, expected 49 ms after the question", key, d)
		}
	}
}
