package windows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

func (x tale) rules(yaml string) {
	x.t.Helper()
	rules, err := windows.Parse("rules.yml", []byte("rules:\n"+yaml))
	testkit.Must(x.t, err)
	x.s.rules = rules
	testkit.Must(x.t, x.s.learn())
}

func (x tale) expectUsed(key string, want ...int64) {
	x.t.Helper()
	st, err := x.s.Peek(x.t.Context(), x.s.rules.Match(key), key)
	testkit.Must(x.t, err)
	for i, w := range st.Windows {
		if w.Used != want[i] {
			x.t.Errorf("window %d: used %d, expected %d", w.WindowMs, w.Used, want[i])
		}
	}
}

// However a rule names exact algorithms for its windows, before and after a reload: what a key has spent in
// each window stays, once.
func TestAReloadBetweenMixesOfExactAlgorithms(t *testing.T) {
	for _, before := range lua.Exact() {
		for _, long := range lua.Exact() {
			for _, after := range lua.Exact() {
				for _, longAfter := range lua.Exact() {
					t.Run(before+","+long+" to "+after+","+longAfter, func(t *testing.T) {
						t.Parallel()
						eachRedis(t, nil, func(t *testing.T, s *store) {
							x := tale{t, s}
							form := "  - {name: r, match: '*', windows: [{limit: 50, per: 3s, algorithm: %s}, " +
								"{limit: 100, per: 1h, algorithm: %s}]}"
							x.rules(fmt.Sprintf(form, before, long))
							x.check("k", 40)
							s.clock.ms += 4000
							x.check("k", 10)
							s.clock.ms += 1000
							x.check("k", 5)
							x.rules(fmt.Sprintf(form, after, longAfter))
							x.check("k", 1)
							x.expectUsed("k", 16, 56)
						})
					})
				}
			}
		}
	}
}

// What was spent under an override stays spent when it ends: in windows that are longer than its own, and
// under a rule of another exact algorithm.
func TestWhatWasSpentUnderAnOverrideStays(t *testing.T) {
	for _, algorithm := range lua.Exact() {
		for name, one := range map[string]api.Override{
			"limit": {Key: "k", Windows: []api.OverrideWindow{{Limit: 60, Per: "2s"}}},
			"tier":  {Key: "k", Rule: "stone"},
		} {
			t.Run(algorithm+" "+name, func(t *testing.T) {
				eachRedis(t, nil, func(t *testing.T, s *store) {
					x := tale{t, s}
					x.rules("  - {name: stone, windows: [{limit: 60, per: 2s}]}\n" +
						"  - {name: api, match: '*', algorithm: " + algorithm + ", windows: [{limit: 100, per: 20s}]}")
					x.check("k", 7)
					all := windows.NewOverrides(s.serve, nil)
					s.rules = s.rules.With(all)
					_, err := all.Set(t.Context(), s.rules, one, 0)
					testkit.Must(t, err)
					for range 3 {
						if ws := x.check("k", 10).Items[0].Windows; len(ws) != 1 || ws[0].WindowMs != 2000 {
							t.Fatalf("under the override: %+v", ws)
						}
						s.clock.ms += 3000
					}
					_, err = all.Clear(t.Context(), "k", "", "", "")
					testkit.Must(t, err)
					x.expectUsed("k", 37)
				})
			})
		}
	}
}

// A counter lives as long as its rule's windows look back, also where the rule had shorter ones when it was
// written, and is only denied by since.
func TestADenialKeepsTheCount(t *testing.T) {
	for _, algorithm := range lua.Exact() {
		t.Run(algorithm, func(t *testing.T) {
			s := redisStore(t, streamtest.OwnRedis(t).URL(), nil)
			x := tale{t, s}
			s.useClock(nil)
			form := "  - {name: api, match: '*', algorithm: " + algorithm + ", windows: [{limit: 60, per: %s}]}"
			x.rules(fmt.Sprintf(form, "1m"))
			x.check("k", 50)
			x.rules(fmt.Sprintf(form, "20m"))
			name := s.keys.Counter(s.keys.Partition("k"), lua.Form(algorithm), "k")
			if v := x.check("k", 20); v.Allowed || v.Items[0].RetryAfter < 19*time.Minute {
				t.Fatalf("%+v", v)
			}
			if ttl := s.redis.PTTL(t.Context(), name).Val(); ttl < 19*time.Minute {
				t.Errorf("the count ends in %v", ttl)
			}
		})
	}
}
