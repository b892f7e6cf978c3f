package measure

import (
	"context"
	_ "embed" // the script
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed gcra.lua
var gcraText string

var gcra = redis.NewScript(gcraText)

// GCRA asks for one of a limit of units per `per` by the generic cell rate algorithm, the yardstick of
// a check: one number per key, and no sliding window.
func GCRA(ctx context.Context, c redis.Scripter, key string, limit int64, per time.Duration) error {
	return gcra.Run(ctx, c, []string{key}, limit, per.Microseconds(), 1).Err()
}
