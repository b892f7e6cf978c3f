package counters_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// formulas maps the promise of an algorithm to the formula of its exact answers. With 7 buckets, all
// windows that are drawn below are cut unevenly.
var formulas = map[lua.Promise]Formula{
	lua.EveryUnit:    Exact,
	lua.Estimate:     TwoWindows,
	lua.WholeBuckets: Buckets(testBuckets),
	lua.OfTheClock:   FixedWindow,
}

func formulaOf(algorithm string) Formula { return formulas[lua.PromiseOf(algorithm)] }

const testBuckets = 7

// eachAlgorithm runs a test for every algorithm on every store that has it.
func eachAlgorithm(t *testing.T, test func(t *testing.T, s *store, algorithm string)) {
	t.Helper()
	eachAlgorithmInRedis(t, test)
	t.Run("in-process", func(t *testing.T) { test(t, localStore(t), windows.DefaultAlgorithm) })
}

func eachAlgorithmInRedis(t *testing.T, test func(t *testing.T, s *store, algorithm string)) {
	t.Helper()
	for _, a := range windows.Algorithms {
		t.Run(a, func(t *testing.T) {
			eachRedis(t, nil, func(t *testing.T, s *store) { test(t, s, a) })
		})
	}
}

// eachTimeline tries a property on many timelines, which it gives keys with different prefixes.
func eachTimeline(t *testing.T, try func(rt *rapid.T, prefix string)) {
	t.Helper()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		try(rt, fmt.Sprintf("user:%d-", run))
	})
}

// TestCounterEqualsRecount runs random timelines (a clock that does not move, jumps, or
// goes to an edge of a window, costs up to the limit, one to three windows from 10 ms to
// 310 days, events folded late and many in one millisecond, resets). It compares every
// field of every reply with a naive recount by the algorithm's formula.
func TestCounterEqualsRecount(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, s *store, algorithm string) {
		eachTimeline(t, func(rt *rapid.T, prefix string) { newTimeline(rt, s, algorithm, prefix).run() })
	})
}

// TestScriptsEqualTheRecount is TestCounterEqualsRecount on a server without functions: the library runs as scripts.
func TestScriptsEqualTheRecount(t *testing.T) {
	if streamtest.HasRedis(t) {
		t.Skip("CI runs it with Go alone")
	}
	for _, algorithm := range windows.Algorithms {
		t.Run(algorithm, func(t *testing.T) {
			s := redisStore(t, "redis://"+streamtest.ScriptsRedis(t).Addr(), nil)
			eachTimeline(t, func(rt *rapid.T, prefix string) { newTimeline(rt, s, algorithm, prefix).run() })
		})
	}
}

// timeline is one random run over one rule.
type timeline struct {
	*rapid.T
	s          *store
	rule       *windows.Rule
	plan       *windows.Plan
	limits     []OracleWindow
	oracle     recount
	calendars  map[int64]windows.Calendar // ms of a window → when its periods begin
	keys       []string
	span       int64 // ms
	largest    int64 // of a folded event
	noRefunds  bool
	appended   int64               // ms of the newest event: a stream's IDs only increase
	remembered map[string]answered // idempotency key → the answer
}

// recount is what a timeline is compared with: Oracle, or one for each algorithm.
type recount interface {
	Add(key string, ms, count int64)
	Clock(key string, now int64) int64
	Used(key string, now, window int64) int64
	Truth(key string, now, window int64) int64
	GiveBack(key string, now, window, units int64) int64
	Reset(key string)
}

// room reports whether all windows admit cost more units by the recount.
func room(o recount, key string, now, cost int64, windows []OracleWindow) bool {
	for _, w := range windows {
		if o.Used(key, now, w.Ms)+cost > w.Limit {
			return false
		}
	}
	return true
}

func newTimeline(t *rapid.T, s *store, algorithm, prefix string) *timeline {
	l := &timeline{T: t, s: s, oracle: &Oracle{Formula: formulaOf(algorithm)},
		keys: []string{prefix + "a", prefix + "b{" + prefix + "a}"}}
	if formulaOf(algorithm) == nil { // it would be compared with the exact count
		t.Fatalf("%s promises what formulas has no recount of: write one into oracle_test.go", algorithm)
	}
	rule := &windows.Rule{Name: "r", Match: "*", Algorithm: algorithm, Alerts: []int{80}, Hold: time.Second}
	if algorithm == windows.SlidingBuckets {
		rule.Buckets = testBuckets
	}
	// A large scale makes sums and products that do not fit into 53 bits.
	scale := rapid.SampledFrom([]int64{1, 1, 1, 33_333_333_333}).Draw(t, "scale")
	l.largest = min(10*scale, 1_000_000_000)
	seen := map[int64]bool{}
	for range rapid.IntRange(1, 3).Draw(t, "windows") {
		w := rapid.SampledFrom([]int64{10, 100, 1000, 1900, 60_000, 3_600_000, 31 * 86_400_000,
			310 * 86_400_000}).Draw(t, "window")
		if seen[w] {
			continue
		}
		seen[w] = true
		limit := scale * rapid.Int64Range(1, 30).Draw(t, "limit")
		rule.Windows = append(rule.Windows, windows.Window{Limit: limit, Per: ms(w)})
		l.limits = append(l.limits, OracleWindow{Ms: w, Limit: limit})
	}
	if rapid.Bool().Draw(t, "on deny") {
		rule.OnDeny = windows.OnDenyCharge
	}
	s.rules = rulesOf(t, rule)
	l.rule, l.plan = s.rules.List()[0], planOf(s.rules)
	l.span = l.rule.Longest().Milliseconds()
	// Every run begins at a time at which windows of all lengths begin, so that it can be repeated.
	const era = 19 * 310 * 86_400_000
	s.clock.ms += 2*era - s.clock.ms%era
	return l
}

func (l *timeline) run() {
	steps := []string{"advance", "edge", "edge", "many", "many", "many", "many", "many", "many", "many", "refund",
		"fold", "fold", "peek", "reset"}
	for range rapid.IntRange(1, 40).Draw(l.T, "steps") {
		key := rapid.SampledFrom(l.keys).Draw(l.T, "key")
		switch rapid.SampledFrom(steps).Draw(l.T, "step") {
		case "advance":
			l.s.clock.ms += rapid.Int64Range(0, l.span/3+1).Draw(l.T, "by")
		case "edge": // a ms before, at, or after the newest event leaves a window or an aligned one begins
			w := rapid.SampledFrom(l.limits).Draw(l.T, "of").Ms
			at := l.oracle.Clock(key, 0) + w
			if c, ok := l.calendars[w]; ok {
				_, at = c.Period(l.s.clock.ms)
			} else if rapid.Bool().Draw(l.T, "aligned") {
				at = (l.s.clock.ms/w + 1) * w
			}
			l.s.clock.ms = max(l.s.clock.ms, at+rapid.Int64Range(-1, 1).Draw(l.T, "beside"))
		case "many":
			l.many()
		case "refund":
			if st, done := l.refund(key); done {
				l.compare(key, st)
			}
		case "fold":
			l.fold(key)
		case "peek":
			l.compare(key, l.s.peek(key))
		case "reset":
			l.s.reset(key)
			l.oracle.Reset(key)
		}
	}
}

// fold counts one or two events in a batch: events of now, late, or too late.
// Two events are too far apart in time to be merged, or have the same time.
func (l *timeline) fold(key string) {
	var events []counters.Event
	for range rapid.IntRange(1, 2).Draw(l.T, "events") {
		lag := rapid.Int64Range(0, l.span/2).Draw(l.T, "lag")
		if rapid.IntRange(0, 4).Draw(l.T, "late") == 0 {
			lag = l.span + rapid.Int64Range(-1, 1).Draw(l.T, "beside")
		}
		at := max(l.s.clock.ms-lag, l.appended)
		if n := len(events); n > 0 && at-events[n-1].Ms <= l.rule.Resolution().Milliseconds() {
			at = events[n-1].Ms
		}
		l.appended = at
		events = append(events, counters.Event{Key: key, Ms: at, Count: rapid.Int64Range(1, l.largest).Draw(l.T,
			"count")})
	}
	l.s.fold(l, l.plan, events...)
	for _, e := range events {
		if e.Ms > l.oracle.Clock(key, l.s.clock.ms)-l.span {
			l.oracle.Add(key, e.Ms, e.Count)
		}
	}
}

// compare compares the state of a key with the recount.
func (l *timeline) compare(key string, st windows.KeyState) {
	now := l.oracle.Clock(key, l.s.clock.ms)
	if st.NowMs != now {
		l.Fatalf("the clock of %s is %d, expected %d", key, st.NowMs, now)
	}
	for i, w := range l.limits {
		used, got := l.oracle.Used(key, now, w.Ms), st.Windows[i]
		if got.Used != used {
			l.Fatalf("window %d at %d: used %d, recount says %d", w.Ms, now, got.Used, used)
		}
		if l.rule.Algorithm == windows.SlidingBuckets {
			width := (w.Ms + testBuckets - 1) / testBuckets
			if used < l.oracle.Truth(key, now, w.Ms) || used > l.oracle.Truth(key, now, w.Ms+width) {
				l.Fatalf("window %d at %d: used %d is off by more than a bucket", w.Ms, now, used)
			}
		}
		if used == 0 {
			continue
		}
		// One ms before, nothing has changed; then the first units are free, then all.
		more, empty := got.NextFreeMs, got.EmptyMs
		if l.oracle.Used(key, now+more-1, w.Ms) != used || l.oracle.Used(key, now+more, w.Ms) >= used {
			l.Fatalf("window %d at %d: units are said to come back in %d ms", w.Ms, now, more)
		}
		if l.oracle.Used(key, now+empty-1, w.Ms) == 0 || l.oracle.Used(key, now+empty, w.Ms) != 0 {
			l.Fatalf("window %d at %d: it is said to be empty in %d ms", w.Ms, now, empty)
		}
	}
}
