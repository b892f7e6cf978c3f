package counters_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// ask sends calls in one run, or one by one if there are no runs (in process).
func (l *timeline) ask(calls [][]counters.Request) (got []counters.Verdict) {
	if l.s.serve != nil {
		return l.s.decideMany(calls...)
	}
	for _, asks := range calls {
		got = append(got, l.s.decide(asks...))
	}
	return got
}

// If somebody else has written a key of another type, the calls with this key are refused. The other calls of the run
// are answered, and stay answered.
func TestARefusalLeavesTheOtherCallsOfARun(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{80},
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		plan, ctx := planOf(s.rules), t.Context()
		calls := [][]counters.Request{}
		for i := range 20 {
			calls = append(calls, []counters.Request{{Plan: plan, Key: fmt.Sprint("k", i), Cost: 1}})
		}
		calls[3][0].Cost = 9
		p := s.keys.Partition(calls[3][0].Key)
		testkit.Must(t, s.redis.Set(ctx, s.keys.Levels(p), "a stranger's", 0).Err())
		got, err := s.serve.CheckMany(ctx, calls)
		if !redisclient.IsRefusal(err) {
			t.Errorf("error %v, want a refusal", err)
		}
		for i, v := range got {
			st := s.peek(calls[i][0].Key)
			if answered := i != 3; v.Answered() != answered || st.Windows[0].Used > 0 != answered {
				t.Errorf("call %d: answered %t, %d used", i, v.Answered(), st.Windows[0].Used)
			}
		}
	})
}

// However many calls with however many keys come at the same time, one script call has a bounded number of
// keys, and each call is answered once.
func TestScriptCallsAreBounded(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		var most atomic.Int64 // keys that a script had
		patient := *s.redis.(*redis.Client).Options()
		patient.ReadTimeout = time.Minute // the embedded server needs seconds
		c := redis.NewClient(&patient)
		t.Cleanup(func() { _ = c.Close() })
		c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if keys, ok := cmd.Args()[min(2, len(cmd.Args())-1)].(int); ok && streamtest.IsScript(cmd) {
				for was := most.Load(); was < int64(keys) && !most.CompareAndSwap(was, int64(keys)); was = most.Load() {
				}
			}
			return next(ctx, cmd)
		}))
		counter := counters.New(c, s.keys)
		rules := rulesOf(t, &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 1000,
			Per: time.Hour}}})
		testkit.Must(t, counter.RecordRules(t.Context(), rules))
		var calls [][]counters.Request
		for i := range 60 {
			var call []counters.Request
			for k := range 100 {
				call = append(call, counters.Request{Plan: planOf(rules), Key: fmt.Sprint(i, "-", k), Cost: 1})
			}
			// All calls have one key in common. Its count shows how often each call was charged.
			calls = append(calls, append(call, counters.Request{Plan: planOf(rules), Key: "all", Cost: 1}))
		}
		verdicts, err := counter.CheckMany(t.Context(), calls)
		testkit.Must(t, err)
		seen := map[int64]bool{}
		for i, v := range verdicts {
			if len(v.Items) != 101 {
				t.Fatalf("call %d has %d answers, want 101", i, len(v.Items))
			}
			used := v.Items[100].Windows[0].Used
			if !v.Allowed || v.Items[0].Windows[0].Used != 1 || seen[used] || used < 1 || used > 60 {
				t.Errorf("call %d: %t, own key %+v, the common one %+v", i, v.Allowed, v.Items[0], v.Items[100])
			}
			seen[used] = true
		}
		if most := most.Load(); most > 1024+100 || most < 1024 {
			t.Errorf("a script call had %d keys, at most 1124 are expected", most)
		}
	})
}

// Checks of one key that come at the same time, some under the rules before a reload and some under the rules
// after it, may be answered in one run. No unit is lost, even if the two rules share counters.
func TestCallsUnderTwoRulesOfOneRun(t *testing.T) {
	forms := []string{
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}]",
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}, {limit: 100, per: day}]",
		"windows: [{limit: 10, per: 1m}, {limit: 1000, per: 1h, algorithm: sliding-counter}]",
		"algorithm: sliding-counter\n    windows: [{limit: 10, per: 1m}]",
		"windows: [{limit: 10, per: 1m, algorithm: sliding-counter}, {limit: 100, per: month}]",
		"algorithm: sliding-log\n    windows: [{limit: 10, per: 1m}]\n    penalty: [1s]",
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for i, before := range forms {
			for j, after := range forms {
				key := fmt.Sprintf("k:%d:%d", i, j)
				ask := func(form string) []counters.Request {
					s.rules = parsed(t, "rules:\n  - name: r\n    match: \"*\"\n    "+form)
					return s.requests(3, key)
				}
				used := int64(0)
				for _, v := range s.decideMany(ask(before), ask(after), ask(before), ask(after)) {
					if v.Allowed {
						used += 3
					}
				}
				shared := i == j || (i < 3 || i == 5) && (j < 3 || j == 5) || (i == 3 || i == 4) && (j == 3 || j == 4)
				st := s.peek(key)
				_, err := s.serve.CheckMany(t.Context(), [][]counters.Request{append(ask(before), ask(after)...)})
				if err == nil || !strings.Contains(err.Error(), "in one check") {
					t.Errorf("a key under two rules in one call: %v", err)
				}
				if n := st.Windows[0].Used; shared && (used != 9 || n != 9) {
					t.Errorf("%s\nand %s:\n%d units were admitted, %d are counted, of 10", before, after, used, n)
				}
			}
		}
	})
}

// If Redis has lost everything since the start, keys may have been counted under the rules before the reload.
func TestAReloadAfterRedisWasEmptied(t *testing.T) {
	per := func(n int64) *windows.Rules {
		return rulesOf(t, &windows.Rule{Name: "r", Match: "*", Windows: []windows.Window{{Limit: 1, Per: ms(n)}}})
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		testkit.Must(t, s.store.RecordRules(t.Context(), per(1000)))
		testkit.Must(t, s.redis.Del(t.Context(), s.keys.Meta()).Err())
		testkit.Must(t, s.store.RecordRules(t.Context(), per(2000)))
		if rules := s.redis.HGet(t.Context(), s.keys.Meta(), "rules").Val(); strings.HasSuffix(rules, "@0") {
			t.Errorf("sc:meta has the rules %s, want the time of the reload", rules)
		}
	})
}

// 64 callers check one key with random costs, by the server's clock. A recount of the
// admitted checks shows that no window gets more than the limit.
func TestConcurrentCallersNeverGetMoreThanTheLimit(t *testing.T) {
	rule := &windows.Rule{Name: "r", Match: "*", Windows: []windows.Window{{Limit: 50, Per: time.Second},
		{Limit: 70, Per: 3 * time.Second}}}
	calls := 100
	if testing.Short() {
		calls = 20
	}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		s.useClock(nil)
		rule := planOf(s.rules)
		var mu sync.Mutex
		var all []Happened
		var full atomic.Int64 // windows that were near their limit, as bits
		// note is called under mu.
		note := func(a Happened) {
			all = append(all, a)
			for i, w := range rule.Live.Windows {
				sum := int64(0)
				for _, b := range all {
					if b.Ms > a.Ms-w.Per.Milliseconds() && b.Ms <= a.Ms {
						sum += b.Count
					}
				}
				if sum >= w.Limit*9/10 {
					full.Or(1 << i)
				}
			}
		}
		began := time.Now()
		var callers sync.WaitGroup
		for c := range uint64(64) {
			callers.Go(func() {
				random := rand.New(rand.NewPCG(c, 1))
				// Many calls, and until both windows were near their limits.
				for i := 0; i < calls || full.Load() != 3 && time.Since(began) < time.Minute; i++ {
					cost := 1 + random.Int64N(5)
					v, err := s.Check(context.Background(), []counters.Request{{Plan: rule, Key: "k", Cost: cost}})
					if err != nil {
						t.Error(err)
						return
					}
					if v.Allowed {
						mu.Lock()
						note(Happened{Ms: v.Items[0].NowMs, Count: cost})
						mu.Unlock()
					}
				}
			})
		}
		callers.Wait()
		slices.SortFunc(all, func(a, b Happened) int { return cmp.Compare(a.Ms, b.Ms) })
		for _, w := range rule.Live.Windows {
			recount, fullest := &Oracle{}, int64(0)
			for _, a := range all {
				recount.Add("k", a.Ms, a.Count)
				fullest = max(fullest, recount.Used("k", a.Ms, w.Per.Milliseconds()))
			}
			if fullest > w.Limit {
				t.Errorf("%d units within %v, the limit is %d", fullest, w.Per, w.Limit)
			}
			if fullest < w.Limit*9/10 {
				t.Errorf("at most %d units within %v: the limit of %d was never near, the test proves nothing",
					fullest, w.Per, w.Limit)
			}
		}
	})
}
