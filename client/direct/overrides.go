package direct

import "context"

// FollowOverrides loads the overrides that operators have set, and follows their changes until ctx ends. Run it
// beside the checks. Without it, checks ignore the blocks, exemptions and limits of operators.
func (r *Redis) FollowOverrides(ctx context.Context) {
	all := r.rules().Overrides()
	_ = all.Poll(ctx) // Run tries again
	all.Run(ctx)
}
