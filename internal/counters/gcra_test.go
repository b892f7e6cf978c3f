package counters_test

import (
	"context"
	_ "embed" // the script
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed testdata/gcra.lua
var gcraText string

var gcraScript = redis.NewScript(gcraText)

// gcra checks one unit of a limit of units per `per` by the generic cell rate algorithm. It is the
// yardstick of a check: one number per key, and no sliding window.
func gcra(ctx context.Context, c redis.Scripter, key string, limit int64, per time.Duration) error {
	return gcraScript.Run(ctx, c, []string{key}, limit, per.Microseconds(), 1).Err()
}
