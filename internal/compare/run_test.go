package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

func run(t *testing.T, cfg Config, trace Trace) *Comparison {
	t.Helper()
	c, err := Run(t.Context(), cfg, trace)
	testkit.Must(t, err)
	return c
}

// requests returns how many requests a replay has: a fifth of n except in CI.
func requests(n int) int {
	if os.Getenv(streamtest.EnvRequire) != "1" {
		return n / 5
	}
	return n
}

// right fails if an exact algorithm admitted too much or too little.
func right(t *testing.T, c *Comparison) {
	t.Helper()
	want := result(t, c, Oracle)
	for _, name := range exact() {
		r := result(t, c, name)
		if r.OverAdmittedRequests != 0 || r.UnderAdmittedRequests != 0 || r.GreatestOvershoot != 0 {
			t.Errorf("%s: over %d, under %d, overshoot %d; first %v, %v", name, r.OverAdmittedRequests,
				r.UnderAdmittedRequests, r.GreatestOvershoot, r.FirstOverAdmitted, r.FirstUnderAdmitted)
		}
		if r.AdmittedRequests != want.AdmittedRequests {
			t.Errorf("%s admitted %d, the oracle %d", name, r.AdmittedRequests, want.AdmittedRequests)
		}
	}
}

// The figures that papers and bug reports about rate limiters mention: 50 per 10 s, and an edge of the clock.
func TestBoundaryAdmits(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		w := window(50, 10*time.Second)
		traces, err := Boundary(w)
		testkit.Must(t, err)
		for i, trace := range traces {
			got := run(t, Config{Redis: c, RedisName: "here", Windows: []windows.Window{w}}, trace)
			right(t, got)
			for _, name := range exact() {
				if n := result(t, got, name).AdmittedRequests; n != 50 {
					t.Errorf("%s: %s admitted %d of 50", trace.Name, name, n)
				}
			}
			for name, want := range map[string][]int64{"fixed-window": {100, 100}, "sliding-counter": {55, 95}} {
				if n := result(t, got, name).AdmittedRequests; n != want[i] {
					t.Errorf("%s: %s admitted %d, want %d", trace.Name, name, n, want[i])
				}
			}
			if r := result(t, got, "sliding-buckets"); r.AdmittedRequests > 50 || r.OverAdmittedRequests != 0 {
				t.Errorf("%s: sliding-buckets admitted %d of 50", trace.Name, r.AdmittedRequests)
			}
			// In the first trace, the ten units of two seconds become free; in the second, those of nine seconds.
			g := result(t, got, GCRA)
			if want := []int64{60, 95}[i]; g.AdmittedRequests != want || g.OverAdmittedRequests != want-50 ||
				g.GreatestOvershoot != want-50 || g.UnderAdmittedRequests != 0 {
				t.Errorf("%s: gcra %+v, want %d admitted", trace.Name, g, want)
			}
		}
	})
}

// Times near zero work like others: 0 means "no time given" to the scripts, and a window cannot begin before zero.
// Requests of several keys have several costs. (internal/counters has the properties of each algorithm.)
func TestTimesNearZero(t *testing.T) {
	limits := []windows.Window{window(4, 400*time.Millisecond), window(6, time.Second)}
	trace := Trace{Name: "near zero"}
	for ms := range int64(60) {
		trace.Requests = append(trace.Requests, Request{ms * 50, []string{"a", "b"}[ms%2], 1 + ms%3, nil})
	}
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		got := run(t, Config{Redis: c, Windows: limits}, trace)
		right(t, got)
		if got.Trace.FirstMs != 0 || got.Trace.LastMs != 2950 {
			t.Errorf("the trace is said to last from %d to %d, want its own times", got.Trace.FirstMs, got.Trace.LastMs)
		}
	})
}

// While a run counts, Redis's own clock must not expire a count that the trace still needs, however long the run takes,
// and no key may stay forever if the run is killed. After the run there are none.
func TestLeavesNothing(t *testing.T) {
	trace := poisson(10, requests(2000), 5)
	limits := []windows.Window{window(20, 10*time.Second)}
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		testkit.Must(t, c.Set(t.Context(), "sc-compared-by-others", 1, 0).Err())
		for name, end := range map[string]bool{"to its end": false, "until it is cancelled": true} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				most := 0
				_, err := Run(ctx, Config{Redis: c, Windows: limits, Progress: func(done, total int) {
					names := ours(t, c)
					most = max(most, len(names))
					if slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ":outbox") }) {
						t.Error("an outbox grows: its memory is taken for that of the counts")
					}
					for _, name := range names {
						if ttl := c.PTTL(t.Context(), name).Val(); strings.Contains(name, "{") &&
							(ttl < time.Hour || ttl > keepFor) {
							t.Errorf("%s ends in %v", name, ttl)
						}
					}
					if end && done > total/3 {
						cancel()
					}
				}}, trace)
				if end != errors.Is(err, context.Canceled) {
					t.Errorf("error %v, cancelled: %t", err, end)
				}
				if most < len(windows.Algorithms)*5 {
					t.Errorf("at most %d keys under the prefix: nothing was counted there", most)
				}
				if left := ours(t, c); len(left) > 0 {
					t.Errorf("it left %v", left)
				}
			})
		}
		if n := c.Exists(t.Context(), "sc-compared-by-others").Val(); n != 1 {
			t.Error("it removed a key that is not its own")
		}
	})
}

// A real Redis reports the cost of a check; an embedded one reports nothing.
func TestWhatRedisTells(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 20 s of CPU on the embedded Redis, under the race detector")
	}
	c, limits := streamtest.AnyRedis(t), []windows.Window{window(50, 10*time.Second)}
	got := run(t, Config{Redis: c, Windows: limits}, poisson(1000, 3000, minKeysForMemory*2))
	if got.Trace.Keys < minKeysForMemory {
		t.Fatalf("the trace has %d keys", got.Trace.Keys)
	}
	for _, r := range got.Algorithms {
		inRedis := streamtest.HasRedis(t) && r.Kind == KindRedis
		if told := r.RedisCPU != nil && *r.RedisCPU > 0; told != inRedis {
			t.Errorf("%s: CPU of Redis told: %t", r.Algorithm, told)
		}
		if told := r.BytesPerKey != nil && *r.BytesPerKey > 20; told != inRedis {
			t.Errorf("%s: memory told: %t", r.Algorithm, told)
		}
	}
	few := run(t, Config{Redis: c, Windows: limits}, poisson(10, 10, 3))
	if b := result(t, few, windows.DefaultAlgorithm).BytesPerKey; b != nil {
		t.Errorf("with 3 keys, %g bytes per key: that is noise", *b)
	}
}

func TestNames(t *testing.T) {
	testkit.Must(t, CheckNames([]string{"gcra", "sliding-log"}))
	for names, want := range map[string]string{"gcra token": `"token": want some of ` + strings.Join(Names(), ", "),
		"gcra gcra": `"gcra": want each algorithm once`} {
		if err := CheckNames(strings.Fields(names)); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestMain(m *testing.M) { streamtest.Main(m) }

// exact returns the algorithms of Names that admit exactly what the limit allows.
func exact() []string {
	return slices.DeleteFunc(append(lua.Exact(), InProcess, Oracle),
		func(n string) bool {
			return n != Oracle && !slices.Contains(Names(), n)
		})
}

func ours(t *testing.T, c redis.UniversalClient) []string {
	t.Helper()
	names, err := c.Keys(t.Context(), "sc-compare-*").Result()
	testkit.Must(t, err)
	return names
}

func window(limit int64, per time.Duration) windows.Window {
	return windows.Window{Limit: limit, Per: per}
}

func result(t *testing.T, c *Comparison, name string) Result {
	t.Helper()
	for _, r := range c.Algorithms {
		if r.Algorithm == name {
			return r
		}
	}
	t.Fatalf("no result of %s", name)
	return Result{}
}

// poisson returns so many requests that arrive independently, at a rate per second, of keys that are chosen evenly.
func poisson(rate float64, requests, keys int) Trace {
	draw := rand.New(rand.NewPCG(1, 0))
	t := Trace{Name: "poisson", Requests: make([]Request, requests)}
	seconds := 0.0
	for i := range t.Requests {
		seconds += draw.ExpFloat64() / rate
		t.Requests[i] = Request{start + int64(seconds*1000), fmt.Sprintf("user:%d", 1+draw.IntN(keys)), 1, nil}
	}
	return t
}
