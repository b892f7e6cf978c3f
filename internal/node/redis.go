package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/processes"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

// openRedis connects to Redis, embedded or not, and compares the settings of the prefix with those in Redis.
func (n *node) openRedis(ctx context.Context) error {
	k, err := stream.NewKeys(n.config.Stream.Prefix, n.config.Stream.Partitions)
	if err != nil {
		return err
	}
	n.keys, n.redisURL = k, n.config.Redis.URL
	port, embedded := settings.EmbeddedPort(n.redisURL, 6379)
	if embedded {
		addr, stop, err := backend.StartRedis(port)
		if err != nil {
			return err
		}
		n.atStop(stop)
		n.redisURL = "redis://" + addr
	}
	target := settings.Redis{URL: n.redisURL, TLS: n.config.Redis.TLS}
	n.redis, n.blocking, err = backend.ConnectRedisToRead(ctx, target, n.keys.Partitions)
	if err != nil {
		return err
	}
	n.closeRedis = sync.OnceFunc(func() {
		if err := errors.Join(n.redis.Close(), n.blocking.Close()); err != nil {
			n.log.Warn("closing the connections to Redis failed", "error", err)
		}
	})
	n.atStop(n.closeRedis)
	n.redisMetrics()
	if !embedded {
		if err := n.examineRedis(ctx); err != nil {
			return settings.Blame("redis", err)
		}
	}
	if err := n.refuseOtherRules(ctx); err != nil {
		return settings.Blame("prefix", err)
	}
	if err := stream.CheckMeta(ctx, n.redis, n.keys); err != nil {
		return settings.Blame("prefix", err)
	}
	n.counter = counters.New(n.redis, n.keys)
	n.counter.Retention = n.config.Stream.Retention
	n.counter.ReportCorrupt(n.registry, n.log)
	return n.counter.RecordRules(ctx, n.rules.Rules())
}

// redisMetrics registers a gauge that shows whether Redis answers. Each scrape asks Redis. On a Cluster all masters
// must answer, because on_error decides the keys of a master that is away; for /readyz, one is enough.
func (n *node) redisMetrics() {
	stateGauge(n.registry, "redis_connected", "1 while Redis answers this process, on a Cluster all masters, else 0.",
		func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
			defer cancel()
			if cluster, ok := n.redis.(*redis.ClusterClient); ok {
				return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
					return master.Ping(ctx).Err()
				}) == nil
			}
			return n.redis.Ping(ctx).Err() == nil
		})
}

// refuseOtherRules returns an error if other processes use the prefix with other rules, so that a trial does not
// publish decisions that contradict theirs. It is called before the process has written anything.
func (n *node) refuseOtherRules(ctx context.Context) error {
	if !n.alone {
		return nil
	}
	all, _, err := processes.List(ctx, n.redis, n.keys)
	if err != nil {
		return err
	}
	own := n.rules.Rules().Fingerprint()
	others := slices.DeleteFunc(all, func(p processes.Process) bool { return p.Fingerprint == own })
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%s at %s is used by processes with other rules (%s): give another prefix, or their rules with "+
		"--rules", n.keys.Prefix, redact.URL(n.redisURL), processes.Words(processes.ByRules(others)))
}

// startWithin is how long a start examines Redis.
const startWithin = 2 * time.Second

// examineRedis logs the problems of Redis, one line each. It delays a start by two seconds at most. It returns an error
// if the user may not run a command that checks or counts need: they would fail later, and on_error would decide.
func (n *node) examineRedis(ctx context.Context) error {
	role := "serve"
	if n.command == "work" || n.command == "dev" {
		role = "work" // with the rights of both
	}
	for _, f := range doctor.Start(ctx, n.redis, n.keys, role, startWithin) {
		if f.Check == doctor.RedisRights {
			return fmt.Errorf("%s; %s: %s", f.Found, f.Why, f.Fix)
		}
		what := strings.TrimPrefix(f.Check, "redis.")
		n.log.Warn("Redis: "+what+": "+f.Found, "check", f.Check, "why", f.Why, "fix", f.Fix)
	}
	return nil
}
