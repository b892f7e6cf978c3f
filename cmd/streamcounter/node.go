package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/rls"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// node is one process of streamcounter: what serve, work and dev have in
// common. It is built step by step, each step leaving behind how to undo it;
// stop undoes them in reverse.
type node struct {
	options
	log      *slog.Logger
	registry *prometheus.Registry
	router   *check.Router
	tokens   *check.Tokens    // nil: nobody is asked for one
	tls      *tls.Config      // nil: plain text
	fresh    map[string]fresh // what it has → files that are followed

	keys     *stream.Keys
	rules    *windows.Source
	limits   func() *rls.Limits // those that belong to the present rules, nil without --rls-config
	rlsTag   string             // --rls-tag, read once: each descriptor of a call needs it
	redis    redis.UniversalClient
	blocking redis.UniversalClient
	counter  *windows.Redis
	pool     *consumers.Pool
	nc       *nats.Conn
	grpc     *grpcServer // nil where nobody asked for it

	redisURL, natsURL, httpAddr string
	away                        atomic.Bool // Redis, when it was last asked for

	undo []func()
}

func newNode(o options, rules *windows.Source, log *slog.Logger) *node {
	n := &node{options: o, rules: rules, limits: func() *rls.Limits { return rls.LimitsOf(rules) }, log: log, registry: prometheus.NewRegistry(), fresh: map[string]fresh{}}
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return n
}

func (n *node) metricsRoute() check.Route {
	return check.Route{Method: "GET", Path: "/metrics", Scope: check.ScopeRead, Serve: promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{})}
}

func (n *node) atStop(f func()) { n.undo = append(n.undo, f) }

func (n *node) stop() {
	for i := len(n.undo) - 1; i >= 0; i-- {
		n.undo[i]()
	}
	n.undo = nil
}

// keepRulesFresh reloads the rules on SIGHUP and when the file changes.
func (n *node) keepRulesFresh(ctx context.Context, running *sync.WaitGroup) {
	reloads := promauto.With(n.registry).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_reloads_total", Help: "Attempts to reload the rules."}, []string{"outcome"})
	reloads.WithLabelValues("ok").Add(0)
	reloads.WithLabelValues("error").Add(0)
	n.rules.OnReload(func(err error) {
		if err != nil {
			reloads.WithLabelValues("error").Inc()
			return
		}
		reloads.WithLabelValues("ok").Inc()
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := n.counter.Learn(within, n.rules.Rules()); err != nil {
			n.log.Warn("the change of rules is not noted; counters of keys whose window grew may end early", "error", err)
		}
		if n.pool != nil {
			n.pool.Recheck()
		}
	})
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	running.Go(func() {
		defer signal.Stop(hup)
		for {
			select {
			case <-hup:
				_ = n.rules.Reload() // it has logged its error and kept the old rules
			case <-ctx.Done():
				return
			}
		}
	})
	running.Go(func() {
		if err := n.rules.Run(ctx); err != nil {
			n.log.Warn("the rules file is not watched, send SIGHUP after a change", "error", err)
		}
	})
}

// openRedis connects, embedded or not, and holds the prefix against what is there.
func (n *node) openRedis(ctx context.Context) error {
	k, err := stream.NewKeys(n.text("prefix"), n.number("partitions"))
	if n.err != nil {
		return n.err
	}
	if err != nil {
		return err
	}
	n.keys, n.redisURL = k, n.text("redis")
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
	redisFiles := n.clientFiles("redis")
	if n.redis, n.blocking, err = connectRedis(ctx, n.redisURL, redisFiles, n.keys.Partitions); err != nil {
		return err
	}
	n.atStop(func() {
		if err := errors.Join(n.redis.Close(), n.blocking.Close()); err != nil {
			n.log.Warn("closing Redis", "error", err)
		}
	})
	if err := answersForAll(ctx, n.redis, n.keys); err != nil {
		return blame("redis", err)
	}
	if err := stream.CheckMeta(ctx, n.redis, n.keys); err != nil {
		return blame("partitions", err)
	}
	if !embedded {
		lookAtStart(ctx, n.redis, n.redisURL, n.log)
	}
	n.counter = windows.NewRedis(n.redis, n.keys)
	n.counter.Remember = n.duration("retention")
	return n.counter.Learn(ctx, n.rules.Rules())
}

// openNATS connects, embedded or not. A NATS that is not there yet is waited
// for in the background: transitions wait in the outbox meanwhile.
func (n *node) openNATS() error {
	n.natsURL = n.text("nats")
	port, embedded, err := embeddedPort(n.natsURL, 4222)
	if err != nil {
		return blame("nats", err)
	}
	if embedded {
		url, stop, err := startNATS(port, n.text("nats-store"), n.log)
		if err != nil {
			return err
		}
		n.atStop(stop)
		n.natsURL = url
	}
	n.nc, err = dialNATS(&n.options, n.natsURL, n.log)
	if err != nil {
		return blame("nats", err)
	}
	n.atStop(n.nc.Close)
	return nil
}

func dialNATS(o *options, url string, log *slog.Logger) (*nats.Conn, error) {
	nc, err := connectNATS(o, url, nats.Name("streamcounter"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS is gone, transitions wait in the outbox", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info("NATS is back", "url", c.ConnectedUrlRedacted()) }))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(url), withoutURL(err))
	}
	if !nc.IsConnected() {
		log.Warn("NATS does not answer yet, transitions wait in the outbox", "url", redacted(url))
	}
	return nc, nil
}

// addWork adds the consumers: worker, reclaimer, sweeper, relay.
func (n *node) addWork(ctx context.Context) error {
	metrics := consumers.NewMetrics(n.registry)
	publisher, err := alerts.NewPublisher(n.nc, alerts.PublisherConfig{
		Prefix: n.keys.Prefix, Replicas: n.number("nats-replicas"), OnOutcome: metrics.Publish, Log: n.log,
	})
	if err != nil {
		return err
	}
	if n.nc.IsConnected() {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := publisher.Ensure(within); err != nil {
			return blame("nats", fmt.Errorf("the JetStream streams cannot be made (is JetStream on, and the server 2.11 or later?): %w", err))
		}
	}
	config := consumers.Config{
		Redis: n.redis, Blocking: n.blocking, Keys: n.keys, Counter: n.counter, Rules: n.rules.Rules, Publisher: publisher, Metrics: metrics,
		MaxBatch: n.number("batch"), MinIdle: n.duration("min-idle"), Retention: n.duration("retention"), DrainTimeout: n.duration("drain-timeout"), Log: n.log,
	}
	if n.err != nil {
		return n.err
	}
	n.pool, err = consumers.NewPool(config)
	return err
}

// addChecks adds the HTTP interface for callers.
func (n *node) addChecks() error {
	log, err := stream.NewLog(n.redis, n.keys, n.duration("retention"))
	if err == nil {
		err = n.err
	}
	if err != nil {
		return err
	}
	var extractors *check.Extractors
	if path := n.text("extractors"); path != "" {
		if extractors, err = check.NewExtractors(path, n.log); err != nil {
			return blame("extractors", err)
		}
		n.fresh["extractors"] = extractors
	}
	service, err := check.NewService(check.Config{
		Extractors: extractors,
		Counter:    n.counter, Log: log, Rules: n.rules.Rules, Metrics: check.NewMetrics(n.registry), Timeout: n.duration("check-timeout"),
		MaxBacklog: n.maxBacklog(), Keys: n.keys, Backlogs: func(ctx context.Context) (map[int]stream.Backlog, error) {
			return stream.Backlogs(ctx, n.redis, n.keys)
		},
	})
	if err != nil {
		return err
	}
	n.router.Add(service.Routes(n.ready)...)
	n.rlsTag = n.text("rls-tag")
	n.addRateLimits(service)
	return n.err
}

// addHealth adds /healthz and /readyz where there is no interface for callers.
func (n *node) addHealth() { n.router.Add(check.HealthRoutes(n.ready)...) }

func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := n.redis.Ping(ctx).Err()
	if away := err != nil; n.away.Swap(away) != away { // whoever asks is not told why, and the log once
		if away {
			n.log.Warn("not ready: Redis does not answer", "error", err)
		} else {
			n.log.Info("ready again: Redis answers")
		}
	}
	return err
}

// run serves and works until ctx ends, and then stops cleanly; the connections
// close after it (stop).
func (n *node) run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: n.router, TLSConfig: n.tls, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelWarn),
	}
	// The first server that fails ends all.
	serving, failed := errgroup.WithContext(ctx)
	serving.Go(func() error {
		serve := func() error { return server.Serve(l) }
		if n.tls != nil {
			serve = func() error { return server.ServeTLS(l, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	if n.grpc != nil {
		serving.Go(n.grpc.serve)
	}
	poolCtx, stopPool := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPool()
	var running sync.WaitGroup
	if n.pool != nil {
		running.Go(func() { n.pool.Run(poolCtx) })
	}
	<-failed.Done()
	if ctx.Err() != nil {
		n.log.Info("stopping")
	}
	// Requests that are being answered and events that are being folded come to
	// their end side by side, within one timeout.
	stopPool()
	within, cancel := context.WithTimeout(context.Background(), n.duration("drain-timeout"))
	defer cancel()
	if n.grpc != nil {
		running.Go(func() { n.grpc.shutdown(within) })
	}
	if err := server.Shutdown(within); err != nil {
		n.log.Warn("requests were cut off", "error", err)
	}
	running.Wait()
	return serving.Wait()
}
