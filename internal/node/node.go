package node

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/page"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// node is one process of streamcounter: the common part of serve, work and dev. It is built step by step. Each step
// registers how to undo it, and stop undoes the steps in reverse.
type node struct {
	command   string // serve, work or dev
	build     Build
	alone     bool   // see Role
	name      string // of this process, unique among all that run: host, process id and a random part
	config    *settings.Config
	log       *slog.Logger
	registry  *prometheus.Registry
	tokens    *access.Tokens       // nil: callers need none
	tls       *tls.Config          // nil: plain text
	traces    trace.TracerProvider // nil: none are sent
	tracer    trace.Tracer         // nil if traces is nil
	reloaders map[string]reloader  // name → value that follows its files

	keys     *stream.Keys
	rules    ruleSource
	redis    redis.UniversalClient
	blocking redis.UniversalClient
	counter  *counters.Redis
	present  func() *windows.Rules // rules with the changes of operators, which are loaded before anything is served
	pool     *consumers.Pool
	nc       *nats.Conn
	nats     *natsconn.Status // of nc; nil without NATS
	activity *activity.Recorder
	history  *alerts.History // nil without NATS
	feed     *page.Feed      // of the page at /; nil in work
	service  *check.Service  // nil in work
	api      *httpapi.Server // its HTTP interface, nil in work
	limiter  *envoy.Service  // Envoy's, nil in work

	envoyMetrics *envoy.Metrics // nil: none
	transports   []transport    // those that it may serve

	redisURL, natsURL string
	endpoints         []*endpoint // the addresses that it serves
	notReady          atomic.Bool // the last readiness probe failed

	closeRedis func()    // ends commands that wait for an answer; nil without Redis
	stopBy     time.Time // set when it stops: the time by which everything must be over
	undo       []func()
	background []func(context.Context) // parts that run until a signal stops the process
	work       []func(context.Context) // parts that need NATS, and run until the servers have stopped

	natsClosed chan error // the NATS library has given up its connection; no known case leads to this
}

func newNode(c Config, rules ruleSource, log *slog.Logger) *node {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	n := &node{
		command: c.Command, build: c.Build, config: c.Settings, rules: rules, log: log,
		name:     fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8]),
		registry: prometheus.NewRegistry(), reloaders: map[string]reloader{}, transports: transports,
		natsClosed: make(chan error, 1),
	}
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(
		collectors.ProcessCollectorOpts{}))
	promauto.With(n.registry).NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_build_info",
		Help: "1, with the version, the commit and the version of Go that the process was built with."},
		[]string{"version", "commit", "go_version"}).WithLabelValues(c.Build.Version, c.Build.Commit, c.Build.Go).Set(1)
	return n
}

// needsNATS reports whether the process has work for which it needs NATS. serve has none: it answers checks without
// NATS.
func (n *node) needsNATS() bool { return len(n.work) > 0 }

func (n *node) atStop(f func()) { n.undo = append(n.undo, f) }

func (n *node) stop() {
	for i := len(n.undo) - 1; i >= 0; i-- {
		n.undo[i]()
	}
	n.undo = nil
}

// Build describes the build of the program, for traces and /metrics.
type Build struct {
	Version string // of the program
	Commit  string // empty if not known
	Go      string // version
}
