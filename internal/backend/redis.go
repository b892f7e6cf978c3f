// Package backend connects to the Redis and the NATS of --redis and --nats, or starts them embedded. redis.go and
// target.go are of Redis, nats.go and natsprobe.go of NATS; embedded.go has the servers.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

// ConnectRedis opens the clients that a --redis value asks for, and proves that
// a server answers. Neither retries by itself: where a reply was lost, a retry
// would append or charge twice. A client connects when it is used, so a command
// that reads no streams has no connections of the blocking one. partitions is how many
// streams may be read at the same time.
func ConnectRedis(ctx context.Context, target string, files settings.ClientFiles, partitions int) (short,
	blocking redis.UniversalClient, err error) {
	opts, err := RedisOptions(target, files)
	if err != nil {
		return nil, nil, settings.UsageError{Err: settings.Blame("redis", err)}
	}
	if short, err = DialRedis(ctx, target, opts); err != nil {
		return nil, nil, settings.Blame("redis", err)
	}
	forBlocking := *opts
	forBlocking.PoolSize, forBlocking.PipelinePoolSize = blockingReads(opts.IsClusterMode, partitions), -1
	return short, openRedisClient(&forBlocking), nil
}

// DialRedis opens one client, of what RedisOptions made of target, and proves that a server answers. If that is a node
// of a Cluster, the client is of the whole Cluster, and opts say so.
func DialRedis(ctx context.Context, target string, opts *redis.UniversalOptions) (redis.UniversalClient, error) {
	c := openRedisClient(opts)
	ping, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := c.Ping(ping).Err()
	if err == nil && !opts.IsClusterMode && opts.MasterName == "" && isClusterNode(ping, c) {
		_ = c.Close()
		opts.IsClusterMode = true
		c = openRedisClient(opts)
		err = c.Ping(ping).Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("no Redis answers at %s: %w%s", redact.URL(target), err,
			besideDev("redis", target)), c.Close())
	}
	return c, nil
}

// isClusterNode asks the server for its mode. Every user may send HELLO, whatever its rights.
func isClusterNode(ctx context.Context, c redis.UniversalClient) bool {
	hello := redis.NewMapStringInterfaceCmd(ctx, "HELLO")
	return c.Process(ctx, hello) == nil && hello.Val()["mode"] == "cluster"
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

// redisLog takes what go-redis would print and logs it for who looks closely:
// each failure is also an error of a command, which is logged where it matters.
type redisLog struct{ atomic.Pointer[slog.Logger] } // nil: nowhere

// RedisLog is where the messages of go-redis go, which has one log for the whole process.
var RedisLog redisLog

// Printf implements the logger of go-redis.
func (l *redisLog) Printf(ctx context.Context, format string, args ...any) {
	if log := l.Load(); log != nil {
		log.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}
