package check

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
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
