package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/page"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// httpServer is the HTTP interface at --http.
type httpServer struct{ *http.Server }

// newHTTPServer serves checks if there is a service, and always /metrics, /healthz and /readyz.
func newHTTPServer(n *node) server {
	routes := httpapi.HealthRoutes(n.ready)
	if n.api != nil {
		routes = append(n.api.Routes(n.ready), page.Routes(n.feed)...)
	}
	metrics := n.metricsHandler()
	routes = append(routes, httpapi.Route{Method: "GET", Path: "/metrics", Scope: access.ScopeRead, Serve: metrics})
	return httpServerOf(n, httpapi.NewRouter(n.tokens, routes...), n.tls)
}

func newHealthServer(n *node) server {
	return httpServerOf(n, httpapi.NewRouter(nil, httpapi.HealthRoutes(n.ready)...), nil)
}

func httpServerOf(n *node, router *httpapi.Router, tls *tls.Config) server {
	s := httpServer{&http.Server{
		Handler: n.traceHTTP(router, router.Pattern), TLSConfig: tls,
		BaseContext:       func(net.Listener) context.Context { return httpapi.WithLog(context.Background(), n.log) },
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: log.New(&errorLog{log: n.log}, "", 0),
	}}
	if n.feed != nil {
		s.RegisterOnShutdown(n.feed.Stop) // its open streams would delay a clean stop
	}
	return s
}

// errorLog logs each panic, and of other lines the first of each kind, because anybody can cause any number of failed
// handshakes.
type errorLog struct {
	log  *slog.Logger
	seen access.Refusals
}

// varies is what differs within a kind: addresses, times, lists, and names from a caller's certificate (in brackets).
var varies = regexp.MustCompile(`(?s)\(.*|\[[^]]*]|\S*\d\S*`)

// panicked is the beginning of a line about a defect of ours, which is logged each time.
var panicked = regexp.MustCompile(`^http2?: panic serving `)

func (l *errorLog) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	switch {
	case panicked.MatchString(text):
		l.log.Error(text)
	case l.seen.First(varies.ReplaceAllString(text, "")):
		l.log.Warn(text + "; more of the same kind are not logged")
	}
	return len(line), nil
}

// metricsHandler serves /metrics. If traces are sent, it uses the format of OpenMetrics, with trace ids as exemplars.
// It does not do so with --rls-metrics, because that format would change the metric names.
func (n *node) metricsHandler() http.Handler {
	return promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: n.tracer != nil && n.envoyMetrics == nil})
}

func (s httpServer) Serve(l net.Listener) error {
	serve := s.Server.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown also closes the connections that have not ended in time: http.Server leaves them open.
func (s httpServer) Shutdown(ctx context.Context) error {
	err := s.Server.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// ready reports to probes whether this process can reach what it needs: Redis, and NATS if it publishes or delivers.
// The caller does not get the reason; it is logged, once per change.
func (n *node) ready(ctx context.Context) error {
	what, err := n.missing(ctx)
	if away := err != nil; n.notReady.Swap(away) != away {
		if away {
			n.log.Warn("not ready: "+what, "error", err)
		} else {
			n.log.Info("ready again")
		}
	}
	return err
}

// pingTimeout is how long a probe, or a scrape, waits for Redis.
const pingTimeout = time.Second

// missing returns the server that the process needs and cannot reach.
func (n *node) missing(ctx context.Context) (what string, err error) {
	if n.redis != nil { // sinks have none
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		if err := n.redis.Ping(ctx).Err(); err != nil {
			return redisclient.Failure(err), err
		}
	}
	if n.needsNATS() && !n.nats.Connected() {
		return "NATS is not connected", nats.ErrDisconnected
	}
	return "", nil
}
