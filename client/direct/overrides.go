package direct

import (
	"context"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// underOperators returns rules with the overrides of operators.
func underOperators(counter *counters.Redis, rules func() *windows.Rules) func() *windows.Rules {
	return windows.Under(counter.NewOverrides(nil), rules)
}

// FollowOverrides loads the overrides that operators have set, and follows their changes until ctx ends. Run it
// beside the checks. Without it, checks ignore the blocks, exemptions and limits of operators.
func (r *Redis) FollowOverrides(ctx context.Context) {
	all := r.rules().Overrides()
	_ = all.Load(ctx) // Run tries again
	all.Run(ctx)
}
