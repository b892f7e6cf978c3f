package check

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A replay repeats the verdict, also under other rules. Its wait agrees with its verdict, and `charged` follows the
// rule of now.
func TestAReplayUnderOtherRulesAgreesWithItself(t *testing.T) {
	clock := int64(1_700_000_000_000)
	limits := func(onDeny windows.OnDeny, limits ...int64) *windows.Rules {
		r := rule("*")
		for i, limit := range limits {
			r.Windows = append(r.Windows, windows.Window{Limit: limit, Per: time.Duration(i+1) * time.Minute})
		}
		r.OnDeny = onDeny
		return rulesOf(t, r)
	}
	const skip, charge = windows.OnDenySkip, windows.OnDenyCharge
	for _, c := range []struct {
		name          string
		before, after *windows.Rules
		mode          api.Mode
		first         int64 // is charged before the request
		allowed       bool
		charged       [2]bool // in the answer and in its replay: the cost counts although it is denied
		waitMs        int64
	}{
		{"a denial that is charged now", limits(skip, 5), limits(charge, 5), "", 5, false, [2]bool{false, true},
			60_000},
		{"a charge", limits(skip, 5), limits(charge, 5), api.ModeCharge, 5, false, [2]bool{true, true}, 60_000},
		{"a denial that would be admitted", limits(skip, 5), limits(skip, 50, 50), "", 5, false, [2]bool{}, 1},
		{"a charge that would be within the limits", limits(skip, 5), limits(skip, 50, 50), api.ModeCharge, 5, false,
			[2]bool{true, true}, 1},
		{"an admission that would be denied", limits(skip, 5), limits(skip, 4, 4), "", 3, true, [2]bool{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcess(t, streamtest.AnyRedis(t), &clock, 0, c.before)
			if _, err := p.Check(t.Context(), api.CheckRequest{Key: "k", Cost: c.first}); err != nil {
				t.Fatal(err)
			}
			ctx := api.WithIdempotency(t.Context(), api.Idempotency{Key: "a"})
			for i, rules := range []*windows.Rules{c.before, c.after} {
				p.rules = rules
				a, err := p.Check(ctx, api.CheckRequest{Key: "k", Cost: 2, Mode: c.mode})
				testkit.Must(t, err)
				if a.Allowed != c.allowed || a.Charged != c.charged[i] || a.Replayed && a.RetryAfterMs != c.waitMs ||
					a.Replayed != (i == 1) {
					t.Errorf("%+v, want allowed %t, charged %t, a wait of %d ms", a, c.allowed, c.charged[i], c.waitMs)
				}
			}
		})
	}
}
