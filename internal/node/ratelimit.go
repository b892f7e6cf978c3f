package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/xds"
)

// ratelimitTransports are served at the addresses of envoyproxy/ratelimit, which requires no token. With
// GRPC_CLIENT_TLS_CACERT, gRPC requires a client certificate.
var ratelimitTransports = []transport{
	{name: "http", title: "HTTP", about: "/json, /healthcheck", scheme: "http", public: true,
		addr: func(c *settings.Config) string { return c.RateLimit.HTTP }, open: newRatelimitHTTP},
	{name: "grpc", title: "gRPC", about: "Envoy's rate limit service", public: true,
		addr: func(c *settings.Config) string { return c.GRPC.Addr }, open: newGRPCServer},
	{name: "debug", title: "debug", about: "/rlconfig, /metrics", scheme: "http", public: true,
		addr: func(c *settings.Config) string { return c.RateLimit.Debug }, open: newRatelimitDebug},
	{name: "metrics", title: "metrics", about: "for Prometheus", scheme: "http", public: true,
		addr: func(c *settings.Config) string { return c.RateLimit.Metrics }, open: newRatelimitMetrics},
}

// ratelimitRules opens the limits of files or of an xDS server.
func ratelimitRules(c *settings.Config, log *slog.Logger) (ruleSource, error) {
	x := c.RateLimit.XDS
	if x == nil {
		return openRules(c.Rules, nil, log)
	}
	if c.Rules.File != "" || c.Rules.Limits != "" {
		return nil, errors.New("--rules and --rls-config are files: they do not go with CONFIG_TYPE=GRPC_XDS_SOTW")
	}
	x.Options, x.Log = c.Rules.Options, log
	s := &xdsRules{}
	if c.RateLimit.TLS != nil {
		var err error
		if s.certificates, err = c.RateLimit.TLS.Open(log); err != nil {
			return nil, err
		}
		x.TLS = s.certificates.Value
	}
	var err error
	s.Source, err = xds.New(*x)
	return s, err
}

// xdsRules are the limits of an xDS server.
type xdsRules struct {
	*xds.Source
	certificates *reload.Files[*tls.Config] // nil: plain text
}

// needsLimits reports whether nothing may be served before limits have come.
func (n *node) needsLimits() bool { return n.config.RateLimit.Wait && n.config.RateLimit.XDS != nil }

// waitForLimits waits for the first limits if nothing may be served before them, and then listens. It returns false
// if ctx ends first.
func (n *node) waitForLimits(ctx context.Context) (bool, error) {
	s, ok := n.rules.(*xdsRules)
	if !ok || !n.needsLimits() {
		return true, nil
	}
	n.log.Info("waiting for the first limits", "server", n.config.RateLimit.XDS.Server)
	select {
	case <-s.Arrived():
	case <-ctx.Done():
		return false, nil
	}
	for _, e := range n.endpoints {
		if err := n.bind(e); err != nil {
			return false, err
		}
	}
	return true, nil
}

func newRatelimitHTTP(n *node) server {
	return httpServerOf(n, httpapi.NewRouter(nil,
		httpapi.Route{Method: "GET", Path: "/healthcheck", Open: true, Serve: http.HandlerFunc(n.healthcheck)},
		httpapi.Route{Method: "POST", Path: "/json", Serve: n.limiter}), nil)
}

// healthcheck answers the probes of Envoy Gateway's deployment. If some limits are refused while others are in force,
// that is not a failure: a failure would end a process that enforces all the other limits.
func (n *node) healthcheck(w http.ResponseWriter, r *http.Request) {
	none, refused := n.noLimits() != nil, n.rules.Refused()
	switch limits := n.limits(); {
	case none && refused != nil:
		http.Error(w, "no limits are in force: "+refused.Error(), http.StatusInternalServerError)
	case n.config.RateLimit.NeedLimits && (limits == nil || limits.Len() == 0):
		http.Error(w, "no limits are loaded", http.StatusInternalServerError)
	case n.config.RateLimit.NeedRedis && n.ready(r.Context()) != nil:
		http.Error(w, "not ready: the log has the reason", http.StatusInternalServerError)
	case none:
		_, _ = w.Write([]byte("OK, no limits yet"))
	case refused != nil:
		_, _ = w.Write([]byte("OK, but refused: " + refused.Error()))
	default:
		_, _ = w.Write([]byte("OK"))
	}
}

// noLimits returns an error until limits have come.
func (n *node) noLimits() error {
	if s, ok := n.rules.(*xdsRules); ok {
		return s.Ready()
	}
	return nil
}

func newRatelimitDebug(n *node) server {
	return httpServerOf(n, httpapi.NewRouter(nil,
		httpapi.Route{Method: "GET", Path: "/rlconfig", Open: true, Serve: http.HandlerFunc(func(
			w http.ResponseWriter, _ *http.Request) {
			if limits := n.limits(); limits != nil {
				lines := slices.Sorted(slices.Values(limits.Dump()))
				fmt.Fprint(w, strings.Join(append(lines, ""), "\n"))
			}
		})}, n.metricsRoute("/metrics")), nil)
}

func newRatelimitMetrics(n *node) server {
	return httpServerOf(n, httpapi.NewRouter(nil, n.metricsRoute(n.config.RateLimit.MetricsPath)), nil)
}

func (n *node) metricsRoute(path string) httpapi.Route {
	return httpapi.Route{Method: "GET", Path: path, Open: true, Serve: n.metricsHandler()}
}
