package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connectRedis opens the clients that a --redis value asks for, and proves that
// a server answers. Neither retries by itself: where a reply was lost, a retry
// would append or charge twice.
func connectRedis(ctx context.Context, target string) (short, blocking redis.UniversalClient, err error) {
	opts, err := redisOptions(target)
	if err != nil {
		return nil, nil, blame("redis", err)
	}
	short = redis.NewUniversalClient(opts)
	forBlocking := *opts
	forBlocking.PoolSize = 2 // events and outboxes; a Cluster client has as many per node
	if opts.IsClusterMode {
		forBlocking.PoolSize = 64
	}
	blocking = redis.NewUniversalClient(&forBlocking)
	ping, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := short.Ping(ping).Err(); err != nil {
		err = fmt.Errorf("no Redis answers at %s: %w", redacted(target), err)
		return nil, nil, blame("redis", errors.Join(err, short.Close(), blocking.Close()))
	}
	return short, blocking, nil
}

func redisOptions(target string) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: 2 * time.Second, DialerRetries: 1, // we try again ourselves, and say so
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if rest, ok := strings.CutPrefix(target, "redis+sentinel://"); ok {
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
			return nil, fmt.Errorf("%s: %s", redacted(target), strings.TrimPrefix(withoutURL(err).Error(), "redis: "))
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
