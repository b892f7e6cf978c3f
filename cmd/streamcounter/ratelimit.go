package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/xds"
)

// ratelimitName is the command, and the program's own name in the image that stands in for
// envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// ratelimitConfig is what only this command has.
type ratelimitConfig struct {
	XDS         *xds.Config // nil: limits of files
	TLS         *xdsTLS     // of XDS; nil: plain text
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
		Short: "Drop-in replacement for envoyproxy/ratelimit (reads its environment variables)",
		Long: `Answers Envoy's rate limit service as envoyproxy/ratelimit does: at the same ports,
with limits from files or from an xDS server such as Envoy Gateway, configured by the
same environment variables (docs/envoy.md lists them). The program also does this if
its own name is ratelimit. A flag or its STREAMCOUNTER_ variable wins over a variable
of envoyproxy/ratelimit. Without --nats nothing is published.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 RUNTIME_ROOT=/data streamcounter ratelimit
  CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 \
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 streamcounter ratelimit`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts := serveParts
			if c.NATS.URL != "" {
				parts = devParts
			}
			return role{parts: parts, transports: ratelimitTransports, rules: ratelimitRules}.run(cmd, c)
		},
	}
	c.flags(cmd, "redis", "nats", "jetstream", "rules", "grpc", "tls-cert", "tls-key", "tls-client-ca",
		"max-connections", "check-timeout", "instances", "denial-cache", "stream", "work", "process")
	load := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		warnings, err := c.fromRatelimit(cmd.Flags(), os.LookupEnv)
		if err != nil {
			return exitError{exitUsage, err}
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
	x.Options, x.Log = c.Rules.Options, log
	s := &xdsRules{}
	if c.RateLimit.TLS != nil {
		var err error
		if s.certificates, err = c.RateLimit.TLS.open(log); err != nil {
			return nil, err
		}
		x.TLS = s.certificates.Value
	}
	var err error
	s.Source, err = xds.New(*x)
	return s, err
}

// xdsRules are limits of an xDS server.
type xdsRules struct {
	*xds.Source
	certificates *reload.Files[*tls.Config] // nil: plain text
}

// xdsTLS is how the connection to the xDS server is encrypted.
type xdsTLS struct {
	clientFiles
	serverName string // of the server's certificate; empty: that of its address
}

// open reads the files, which are read again when they change.
func (x xdsTLS) open(log *slog.Logger) (*reload.Files[*tls.Config], error) {
	paths := slices.DeleteFunc([]string{x.ca, x.cert, x.key}, func(path string) bool { return path == "" })
	return reload.Open("certificates of the xDS server", log, func([]reload.File) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: x.serverName}
		if err := x.apply(c); err != nil {
			return nil, fmt.Errorf("TLS of the xDS server (CONFIG_GRPC_XDS_SERVER_TLS_CACERT, "+
				"CONFIG_GRPC_XDS_CLIENT_TLS_CERT, _KEY): %w", cmp.Or(errors.Unwrap(err), err))
		}
		return c, nil
	}, paths...)
}

// waits says that nothing is served before limits have come.
func (n *node) waits() bool { return n.config.RateLimit.Wait && n.config.RateLimit.XDS != nil }

// waitForLimits waits where limits must have come before anything is served, and then listens. It is false
// where ctx ends first.
func (n *node) waitForLimits(ctx context.Context) (bool, error) {
	s, ok := n.rules.(*xdsRules)
	if !ok || !n.waits() {
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
		httpapi.Route{Method: "POST", Path: "/json", Open: true, Serve: n.limiter}), nil)
}

// healthcheck answers the probes of Envoy Gateway's deployment. What is refused beside limits in force is no
// failure, which would end a process that limits everything else.
func (n *node) healthcheck(w http.ResponseWriter, r *http.Request) {
	none, refused := n.noLimits() != nil, n.rules.Refused()
	switch limits := n.limits(); {
	case none && refused != nil:
		http.Error(w, "no limits are in force: "+refused.Error(), http.StatusInternalServerError)
	case n.config.RateLimit.NeedLimits && (limits == nil || limits.Len() == 0):
		http.Error(w, "no limits are loaded", http.StatusInternalServerError)
	case n.config.RateLimit.NeedRedis && n.ready(r.Context()) != nil:
		http.Error(w, "Redis does not answer", http.StatusInternalServerError)
	case none:
		_, _ = w.Write([]byte("OK, no limits yet"))
	case refused != nil:
		_, _ = w.Write([]byte("OK, but refused: " + refused.Error()))
	default:
		_, _ = w.Write([]byte("OK"))
	}
}

// noLimits is an error before limits have come.
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
