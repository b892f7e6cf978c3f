package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/streamcounter/streamcounter/stream"
)

// connectRedis opens the clients that a --redis value asks for, and proves that
// a server answers. Neither retries by itself: where a reply was lost, a retry
// would append or charge twice. A client connects when it is used, so a command
// that reads no streams has no connections of the blocking one.
func connectRedis(ctx context.Context, target string, files clientFiles, partitions int) (short, blocking redis.UniversalClient, err error) {
	opts, err := secureRedisOptions(target, files)
	if err != nil {
		return nil, nil, blame("redis", err)
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
		return nil, errors.Join(fmt.Errorf("no Redis answers at %s: %w", redacted(target), err), c.Close())
	}
	return c, nil
}

func openRedisClient(o *redis.UniversalOptions) redis.UniversalClient {
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

// secureRedisOptions adds the files of TLS. They are of no use to a URL without
// it, and whoever gave them means to have it.
func secureRedisOptions(target string, files clientFiles) (*redis.UniversalOptions, error) {
	o, err := redisOptions(target)
	if err != nil || !files.given() {
		return o, err
	}
	if o.TLSConfig == nil {
		return nil, fmt.Errorf("%s is not spoken to by TLS: --redis-ca, --redis-cert and --redis-key need rediss://", redacted(target))
	}
	return o, files.apply(o.TLSConfig)
}

func redisOptions(target string) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: 2 * time.Second, DialerRetries: 1, // we try again ourselves, and say so
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		PoolSize: 10 * runtime.GOMAXPROCS(0), PipelinePoolSize: 10, // at each node, where there are several
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	scheme, rest, _ := strings.Cut(target, "://")
	if scheme == "redis+sentinel" || scheme == "rediss+sentinel" {
		if scheme == "rediss+sentinel" { // Sentinel and Redis alike; each connection checks the name it dialed
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			user, pass, _ := strings.Cut(rest[:at], ":")
			o.Username, o.Password, rest = user, pass, rest[at+1:]
		}
		hosts, master, ok := strings.Cut(rest, "/")
		if !ok || master == "" || hosts == "" {
			return nil, fmt.Errorf("%s: expected redis+sentinel://HOST:PORT,HOST:PORT/MASTER", redacted(target))
		}
		o.Addrs, o.MasterName = strings.Split(hosts, ","), master
		return o, nil
	}
	parts := strings.Split(target, ",")
	for i, part := range parts {
		if !strings.Contains(part, "://") && i > 0 {
			part = "redis://" + part // redis://a:1,b:2
		}
		one, err := redis.ParseURL(part)
		if err != nil {
			reason := withoutURL(err)
			if strings.Contains(target, "@") { // whatever is said of it may have a part of the password
				reason = errNoURL
			}
			return nil, fmt.Errorf("%s: %s", redacted(target), strings.TrimPrefix(reason.Error(), "redis: "))
		}
		o.Addrs = append(o.Addrs, one.Addr)
		if i == 0 {
			o.Username, o.Password, o.DB, o.TLSConfig = one.Username, one.Password, one.DB, one.TLSConfig
		}
	}
	o.IsClusterMode = len(parts) > 1
	return o, nil
}

// redisLog takes what go-redis would print and logs it for who looks closely:
// each failure is also an error of a command, which is logged where it matters.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}

var errNoURL = errors.New("it is no URL (in a name or password, write @ : / # ? % as %40 %3A %2F %23 %3F %25)")

// withoutURL takes the target out of an error about its form: it can hold a password.
func withoutURL(err error) error {
	var bad *url.Error
	if errors.As(err, &bad) {
		return errNoURL
	}
	return err
}

// redacted is a target without its passwords, for messages.
func redacted(target string) string {
	if !strings.Contains(target, "@") {
		return target
	}
	if u, err := url.Parse(target); err == nil && u.User != nil && !strings.Contains(u.Host+u.Path+u.RawQuery+u.Fragment, "@") {
		return u.Redacted()
	}
	// Several, or a password that is not written as it should be: what stands before
	// the last @ is not shown.
	scheme, _, ok := strings.Cut(target, "://")
	if !ok || strings.Contains(scheme, "@") {
		scheme = "…"
	}
	return scheme + "://…@" + target[strings.LastIndexByte(target, '@')+1:]
}
