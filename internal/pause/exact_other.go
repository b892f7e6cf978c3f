//go:build !linux

package pause

import (
	"context"
	"time"
)

// Exact is For where there is no clock_nanosleep.
func Exact(ctx context.Context, d time.Duration) bool { return For(ctx, d) }
