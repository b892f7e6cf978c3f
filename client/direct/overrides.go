package direct

import (
	"context"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// underOperators gives rules with the overrides of operators.
func underOperators(counter *counters.Redis, rules func() *windows.Rules) func() *windows.Rules {
	return windows.Under(counter.NewOverrides(nil), rules)
}

// FollowOverrides loads what operators have set for single keys, and follows it until ctx ends. Run it
// beside the checks: without it they know of no block, exemption or limit of an operator.
func (r *Redis) FollowOverrides(ctx context.Context) {
	all := r.rules().Overrides()
	_ = all.Load(ctx) // Run tries again
	all.Run(ctx)
}
