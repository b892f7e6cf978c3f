package counters_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
)

func (x tale) rules(yaml string) {
	x.t.Helper()
	x.s.rules = parsed(x.t, "rules:\n"+yaml)
	testkit.Must(x.t, x.s.learn())
}

// Units that were spent under an override still count after it ends, also in windows that are longer than the
// override's, if the same algorithm counts both. A tier with another algorithm counts separately.
func TestWhatWasSpentUnderAnOverrideStays(t *testing.T) {
	limit := api.Override{Key: "k", Windows: []api.OverrideWindow{{Limit: 60, Per: "2s"}}, Only: true}
	tier := api.Override{Key: "k", Rule: "stone"}
	for name, c := range map[string]struct {
		stone, named string
		override     api.Override
		want         int64
	}{
		"a limit":                           {"sliding-log", "", limit, 37},
		"a limit beside a named algorithm":  {"sliding-log", ", algorithm: sliding-log-zset", limit, 37},
		"a tier":                            {"sliding-log", "", tier, 37},
		"a tier of another exact algorithm": {"sliding-log-zset", "", tier, 7},
	} {
		t.Run(name, func(t *testing.T) {
			eachRedis(t, nil, func(t *testing.T, s *store) {
				x := tale{t, s}
				x.rules("  - {name: stone, algorithm: " + c.stone + ", windows: [{limit: 60, per: 2s}]}\n" +
					"  - {name: api, match: '*', windows: [{limit: 100, per: 20s" + c.named + "}]}")
				x.check("k", 7)
				all := s.serve.NewOverrides(nil)
				s.rules = s.rules.With(all)
				_, err := all.Set(t.Context(), s.rules.ValidateOverride, c.override, 0)
				testkit.Must(t, err)
				for range 3 {
					if ws := x.check("k", 10).Items[0].Windows; len(ws) != 1 || ws[0].WindowMs != 2000 {
						t.Fatalf("under the override: %+v", ws)
					}
					s.clock.ms += 3000
				}
				_, err = all.Clear(t.Context(), "k", "", "", "")
				testkit.Must(t, err)
				if n := used(t, s, "k"); n != c.want {
					t.Errorf("used %d, expected %d", n, c.want)
				}
			})
		})
	}
}

// A counter is kept as long as its rule's windows look back, even if the rule had shorter windows when the counter
// was written, and later checks are only denied.
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
