package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/check/envoy/xds"
	"github.com/streamcounter/streamcounter/check/httpapi"
)

// ratelimitName is the command, and the program's own name in the image that stands in for
// envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// ratelimitConfig is what only this command has.
type ratelimitConfig struct {
	XDS         *xds.Config // nil: limits of files
	Wait        bool        // serve only once limits have come
	HTTP        string      // address of /json and /healthcheck
	Debug       string      // address of /rlconfig; empty: not served
	Metrics     string      // address; empty: not served
	MetricsPath string
	// What /healthcheck asks for beside the process itself.
	NeedLimits, NeedRedis bool
}

func newRatelimit() *cobra.Command {
	c := newConfig()
	c.NATS.URL = ""
	cmd := &cobra.Command{
		Use:   ratelimitName,
		Short: "Stand in for envoyproxy/ratelimit, by its environment variables",
		Long: `Answers Envoy's rate limit service as envoyproxy/ratelimit does: at its ports, with
limits of files or of an xDS server such as Envoy Gateway, configured by its
environment variables (docs/envoy.md lists them). This program does the same where
its own name is ratelimit. A flag, or its STREAMCOUNTER_ variable, goes before a
variable of envoyproxy/ratelimit. Without --nats nothing is published.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 RUNTIME_ROOT=/data streamcounter ratelimit
  CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 \
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 streamcounter ratelimit`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts := serveParts
			if c.NATS.URL != "" {
				parts = devParts
			}
			return role{parts: parts, transports: ratelimitTransports, rules: ratelimitRules}.run(cmd, c)
		},
	}
	c.flags(cmd, "redis", "nats", "jetstream", "rules", "grpc", "tls-cert", "tls-key", "tls-client-ca",
		"max-connections", "check-timeout", "denial-cache", "stream", "work", "process")
	load := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		warnings, err := c.fromRatelimit(cmd.Flags(), os.LookupEnv)
		if err != nil {
			return err
		}
		if err := load(cmd, args); err != nil {
			return err
		}
		c.warnings = append(c.warnings, warnings...)
		c.Rules.Unlevelled = c.NATS.URL == "" // nobody would end levels, nor read what they publish
		return nil
	}
	return cmd
}

// ratelimitTransports are at the addresses of envoyproxy/ratelimit, which asks for no token;
// with GRPC_CLIENT_TLS_CACERT gRPC asks for a certificate.
var ratelimitTransports = []transport{
	{name: "http", title: "HTTP", about: "/json, /healthcheck", scheme: "http", public: true,
		addr: func(c *config) string { return c.RateLimit.HTTP }, open: newRatelimitHTTP},
	{name: "grpc", title: "gRPC", about: "Envoy's rate limit service", public: true,
		addr: func(c *config) string { return c.GRPC.Addr }, open: newGRPCServer},
	{name: "debug", title: "debug", about: "/rlconfig, /metrics", scheme: "http", public: true,
		addr: func(c *config) string { return c.RateLimit.Debug }, open: newRatelimitDebug},
	{name: "metrics", title: "metrics", about: "for Prometheus", scheme: "http", public: true,
		addr: func(c *config) string { return c.RateLimit.Metrics }, open: newRatelimitMetrics},
}

// ratelimitRules opens the limits of files or of an xDS server.
func ratelimitRules(c *config, log *slog.Logger) (ruleSource, error) {
	x := c.RateLimit.XDS
	if x == nil {
		return openRules(c.Rules, nil, log)
	}
	if c.Rules.File != "" || c.Rules.Limits != "" {
		return nil, errors.New("--rules and --rls-config are files: they do not go with CONFIG_TYPE=" + typeXDS)
	}
	x.Options, x.Log = limitOptions(c.Rules), log
	return xds.New(*x)
}

// waitForLimits waits where limits must have come before anything is served; it is false
// where ctx ends first.
func (n *node) waitForLimits(ctx context.Context) bool {
	s, ok := n.rules.(interface{ Arrived() <-chan struct{} })
	if !ok || !n.config.RateLimit.Wait {
		return true
	}
	n.log.Info("waiting for the first limits", "server", n.config.RateLimit.XDS.Server)
	select {
	case <-s.Arrived():
		return true
	case <-ctx.Done():
		return false
	}
}

func newRatelimitHTTP(n *node) server {
	return httpServerOf(n, httpapi.NewRouter(nil,
		httpapi.Route{Method: "GET", Path: "/healthcheck", Open: true, Serve: http.HandlerFunc(n.healthcheck)},
		httpapi.Route{Method: "POST", Path: "/json", Open: true, Serve: n.limiter}), nil)
}

// healthcheck answers the probes of Envoy Gateway's deployment.
func (n *node) healthcheck(w http.ResponseWriter, r *http.Request) {
	switch limits := n.limits(); {
	case n.config.RateLimit.NeedLimits && (limits == nil || limits.Len() == 0):
		http.Error(w, "no limits are loaded", http.StatusInternalServerError)
	case n.config.RateLimit.NeedRedis && n.ready(r.Context()) != nil:
		http.Error(w, "Redis does not answer", http.StatusInternalServerError)
	default:
		_, _ = w.Write([]byte("OK"))
	}
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
