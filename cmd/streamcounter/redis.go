package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/processes"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// connectRedis opens the clients that a --redis value asks for, and proves that
// a server answers. Neither retries by itself: where a reply was lost, a retry
// would append or charge twice. A client connects when it is used, so a command
// that reads no streams has no connections of the blocking one.
func connectRedis(ctx context.Context, target string, files clientFiles, partitions int) (short,
	blocking redis.UniversalClient, err error) {
	opts, err := secureRedisOptions(target, files)
	if err != nil {
		return nil, nil, exitError{exitUsage, blame("redis", err)}
	}
	if short, err = dialRedis(ctx, target, opts); err != nil {
		return nil, nil, blame("redis", err)
	}
	forBlocking := *opts
	forBlocking.PoolSize, forBlocking.PipelinePoolSize = blockingReads(opts.IsClusterMode, partitions), -1
	return short, openRedisClient(&forBlocking), nil
}

// dialRedis opens one client and proves that a server answers.
func dialRedis(ctx context.Context, target string, opts *redis.UniversalOptions) (redis.UniversalClient, error) {
	c := openRedisClient(opts)
	ping, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := c.Ping(ping).Err(); err != nil {
		return nil, errors.Join(fmt.Errorf("no Redis answers at %s: %w%s", redact.URL(target), err,
			besideDev("redis", target)), c.Close())
	}
	return c, nil
}

// openRedisClient makes a client whose replies are bounded, on every connection.
func openRedisClient(o *redis.UniversalOptions) redis.UniversalClient {
	dial := redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	guarded := *o
	guarded.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return replyguard.New(c), nil
	}
	o = &guarded
	if o.IsClusterMode {
		return stream.NewCluster(o.Cluster())
	}
	return redis.NewUniversalClient(o)
}

// blockingReads is how many reads may wait at one server at the same time: one
// of events and one of outboxes, and on a Cluster, where a command may touch one
// slot only, as many for each partition; all of them can lie on one node. The
// map of slots needs a connection now and then too.
func blockingReads(cluster bool, partitions int) int {
	if cluster {
		return 2*partitions + 1
	}
	return 2
}

// answersForAll refuses one node of a Cluster that was given as if it were all of
// Redis: it answers for some partitions and would leave the others uncounted.
func answersForAll(ctx context.Context, c redis.UniversalClient, k *stream.Keys) error {
	// What every user may do, a producer too, and what changes nothing: GT never
	// brings an expiry nearer, nor gives one to a key that has none.
	pipe := c.Pipeline()
	for _, p := range k.All() {
		pipe.Do(ctx, "PEXPIRE", k.Events(p), 1, "GT")
	}
	cmds, _ := pipe.Exec(ctx) // a command that fails otherwise says so where it matters
	for _, cmd := range cmds {
		if _, moved := redis.IsMovedError(cmd.Err()); moved {
			return errors.New("it is one node of a Redis Cluster: give two or more of its nodes, separated by commas")
		}
	}
	return nil
}

// openRedis connects, embedded or not, and compares the prefix with what is there.
func (n *node) openRedis(ctx context.Context) error {
	k, err := stream.NewKeys(n.config.Stream.Prefix, n.config.Stream.Partitions)
	if err != nil {
		return err
	}
	n.keys, n.redisURL = k, n.config.Redis.URL
	port, embedded, err := embeddedPort(n.redisURL, 6379)
	if err != nil {
		return blame("redis", err)
	}
	if embedded {
		addr, stop, err := startRedis(port)
		if err != nil {
			return err
		}
		n.atStop(stop)
		n.redisURL = "redis://" + addr
	}
	if n.redis, n.blocking, err = connectRedis(ctx, n.redisURL, n.config.Redis.TLS, n.keys.Partitions); err != nil {
		return err
	}
	n.atStop(func() {
		if err := errors.Join(n.redis.Close(), n.blocking.Close()); err != nil {
			n.log.Warn("closing the connections to Redis failed", "error", err)
		}
	})
	if err := answersForAll(ctx, n.redis, n.keys); err != nil {
		return blame("redis", err)
	}
	if err := n.refuseOthers(ctx); err != nil {
		return blame("prefix", err)
	}
	if err := stream.CheckMeta(ctx, n.redis, n.keys); err != nil {
		return blame("partitions", err)
	}
	if !embedded {
		lookAtStart(ctx, n.redis, n.redisURL, n.log)
	}
	n.counter = windows.NewRedis(n.redis, n.keys)
	n.counter.Remember = n.config.Stream.Retention
	return n.counter.RecordRules(ctx, n.rules.Rules())
}

// refuseOthers keeps a process that tries things out from publishing decisions by other rules beside those that
// work, before it has written anything.
func (n *node) refuseOthers(ctx context.Context) error {
	if !n.alone {
		return nil
	}
	all, err := processes.List(ctx, n.redis, n.keys)
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

// redisLog takes what go-redis would print and logs it for who looks closely:
// each failure is also an error of a command, which is logged where it matters.
type redisLog struct{ to atomic.Pointer[slog.Logger] } // nil: nowhere

var redisLogger redisLog // go-redis has one for the whole process

func (l *redisLog) Printf(ctx context.Context, format string, args ...any) {
	if log := l.to.Load(); log != nil {
		log.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}
