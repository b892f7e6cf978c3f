package main

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// advise looks at settings of Redis that counts depend on, and says which do
// harm. A server that does not tell (ACL, the embedded one) is left alone.
func advise(ctx context.Context, c redis.UniversalClient, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	setting := func(name string) string {
		got, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			log.Debug("Redis does not tell its settings", "setting", name, "error", err)
		}
		return got[name]
	}
	if policy := setting("maxmemory-policy"); policy != "" && policy != "noeviction" {
		log.Warn("Redis may evict counters and events when its memory is full: limits would not hold and events would be lost",
			"maxmemory-policy", policy, "mend", "CONFIG SET maxmemory-policy noeviction")
	}
	if n, err := strconv.Atoi(setting("stream-node-max-bytes")); err == nil && (n == 0 || n > 1024) {
		log.Info("Redis takes more memory than it needs for keys with few events (about 4 KB for the first; 0.7 KB with the setting below)",
			"stream-node-max-bytes", n, "mend", "CONFIG SET stream-node-max-bytes 512")
	}
}
