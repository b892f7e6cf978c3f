//go:build !linux

package pause

import (
	"context"
	"time"
)

// Exact is For on systems without clock_nanosleep.
func Exact(ctx context.Context, d time.Duration) bool { return For(ctx, d) }
