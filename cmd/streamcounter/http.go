package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
)

// httpServer is the HTTP interface at --http.
type httpServer struct{ *http.Server }

// newHTTPServer serves checks where there is a service, and /metrics, /healthz
// and /readyz always.
func newHTTPServer(n *node) server {
	routes := httpapi.HealthRoutes(n.ready)
	if n.api != nil {
		routes = n.api.Routes(n.ready)
	}
	metrics := promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{})
	routes = append(routes, httpapi.Route{Method: "GET", Path: "/metrics", Scope: access.ScopeRead, Serve: metrics})
	return httpServer{&http.Server{
		Handler: httpapi.NewRouter(n.tokens, routes...), TLSConfig: n.tls,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelWarn),
	}}
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

// Shutdown also closes what has not ended in time: http.Server leaves it open.
func (s httpServer) Shutdown(ctx context.Context) error {
	err := s.Server.Shutdown(ctx)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// ready tells probes whether Redis answers. Whoever asks is not told why it does
// not; the log is, once per change.
func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := n.redis.Ping(ctx).Err()
	if away := err != nil; n.away.Swap(away) != away {
		if away {
			n.log.Warn("not ready: Redis does not answer", "error", err)
		} else {
			n.log.Info("ready again: Redis answers")
		}
	}
	return err
}
