// Package backend connects to the Redis and the NATS of --redis and --nats, or starts them embedded. redis.go and
// target.go are for Redis, nats.go and natsprobe.go for NATS; embedded.go has the embedded servers.
package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

// ConnectRedis opens a client with a pool of so many connections (0: the default), and checks that a server answers.
// The client does not retry: if a reply was lost, a retry would append or charge twice.
func ConnectRedis(ctx context.Context, c settings.Redis, connections int) (redis.UniversalClient, error) {
	client, _, err := connect(ctx, c, connections)
	return client, err
}

// ConnectRedisToRead also opens a client for reads that wait. partitions is how many streams may be read at the same
// time.
func ConnectRedisToRead(ctx context.Context, c settings.Redis, partitions int) (short, blocking redis.UniversalClient,
	err error) {
	short, opts, err := connect(ctx, c, 0)
	if err != nil {
		return nil, nil, err
	}
	opts.PoolSize, opts.PipelinePoolSize = blockingReads(opts.IsClusterMode, partitions), -1
	return short, openRedisClient(opts), nil
}

func connect(ctx context.Context, c settings.Redis, connections int) (redis.UniversalClient, *redis.UniversalOptions,
	error) {
	opts, err := RedisOptions(c.URL, c.TLS)
	if err != nil {
		return nil, nil, settings.UsageError{Err: settings.Blame("redis", err)}
	}
	opts.PoolSize = cmp.Or(connections, opts.PoolSize)
	client, err := dial(ctx, c.URL, opts)
	return client, opts, settings.Blame("redis", err)
}

// dial opens one client with opts, which RedisOptions made from target, and checks that a server answers. If the
// server is a node of a Cluster, the client is for the whole Cluster, and opts are changed accordingly.
func dial(ctx context.Context, target string, opts *redis.UniversalOptions) (redis.UniversalClient, error) {
	c := openRedisClient(opts)
	ping, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := pingAny(ping, c)
	if err == nil && !opts.IsClusterMode && opts.MasterName == "" && isClusterNode(ping, c) {
		_ = c.Close()
		opts.IsClusterMode = true
		c = openRedisClient(opts)
		err = pingAny(ping, c)
	}
	if redisclient.Word(err) != "" {
		err = fmt.Errorf("the Redis at %s answers, but refuses: %w", redact.URL(target), err)
		return nil, errors.Join(err, c.Close())
	}
	if err == nil {
		return c, nil
	}
	if other := tlsMismatch(opts); other != nil {
		err = fmt.Errorf("%w; %w", err, other)
	}
	return nil, errors.Join(fmt.Errorf("no Redis answers at %s: %w%s", redact.URL(target), err,
		devHint("redis", target)), c.Close())
}

// Away reports whether waiting can help after an error of ConnectRedis: the server is not there, or not ready yet.
func Away(err error) bool {
	host, unknown := errors.AsType[*net.DNSError](err)
	connection, broken := errors.AsType[*net.OpError](err)
	timeout, late := errors.AsType[net.Error](err)
	switch word := redisclient.Word(err); {
	case word != "":
		return word == "LOADING" || word == "CLUSTERDOWN" || word == "MASTERDOWN"
	case unknown && host.IsNotFound, errors.Is(err, errPlain), errors.Is(err, errTLS):
		return false
	case broken:
		return connection.Op != "remote error"
	}
	return errors.Is(err, io.EOF) || late && timeout.Timeout()
}

// pingAny returns no error if a server answers. On a Cluster, Ping would ask one node, which may be a silent one.
func pingAny(ctx context.Context, c redis.UniversalClient) error {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		return c.Ping(ctx).Err()
	}
	var answered atomic.Bool
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := node.Ping(ctx).Err()
		if err == nil {
			answered.Store(true)
		}
		return err
	})
	if answered.Load() {
		return nil
	}
	return err
}

// isClusterNode reads the server's mode. Every user may send HELLO, whatever their rights.
func isClusterNode(ctx context.Context, c redis.UniversalClient) bool {
	hello := redis.NewMapStringInterfaceCmd(ctx, "HELLO")
	return c.Process(ctx, hello) == nil && hello.Val()["mode"] == "cluster"
}

// openRedisClient returns a client that bounds the replies on every connection.
func openRedisClient(o *redis.UniversalOptions) redis.UniversalClient {
	open := redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	guarded := *o
	guarded.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := open(ctx, network, addr)
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

// blockingReads is how many reads may wait at one server at the same time: one of events and one of outboxes. On a
// Cluster, a command may touch only one slot, so there is one of each per partition, and all partitions can be on one
// node. One more connection is needed now and then to read the map of slots.
func blockingReads(cluster bool, partitions int) int {
	if cluster {
		return 2*partitions + 1
	}
	return 2
}

// redisLog logs the messages of go-redis at level debug: each failure is also the error of a command, which is logged
// where it matters.
type redisLog struct{ atomic.Pointer[slog.Logger] } // nil: nothing is logged

// RedisLog receives the messages of go-redis, which has one log for the whole process.
var RedisLog redisLog

// Printf implements the logger of go-redis.
func (l *redisLog) Printf(ctx context.Context, format string, args ...any) {
	if log := l.Load(); log != nil {
		log.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}
