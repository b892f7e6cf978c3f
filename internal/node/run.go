// Package node wires one running process together: serve, work, dev, sinks or ratelimit. Its settings come from
// package settings. It opens its parts in the order of this file: traces, tokens and certificates, addresses, Redis,
// overrides, activity; then the parts of its Role, such as NATS, workers, checks and the page; and last the servers
// of its addresses. Then it serves and works until a signal stops it, and stops the parts in reverse order (node.go,
// which to read next). Each part is a file; servers.go lists what is served at which address.
package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Config is what a command passes to the process that it runs.
type Config struct {
	Command  string // its name, such as serve
	Build    Build
	Settings *settings.Config
	Stderr   io.Writer // for the log
}

// Part opens one part of a process, or returns why it cannot. The code of each part is in the file of its name: Checks
// in checks.go, Workers in workers.go.
type Part func(*node, context.Context) error

// Parts that only some processes have. A Role lists them in the order of their start.
var (
	// NATS connects to NATS, or waits for it in the background. With "embedded" it starts one.
	NATS Part = (*node).openNATS
	// OptionalNATS connects to NATS if --nats is given.
	OptionalNATS Part = (*node).openOptionalNATS
	// Workers count events, release keys and publish to NATS. Open NATS before. consumers/worker.go describes how
	// events are counted.
	Workers Part = (*node).openWorkers
	// Sinks deliver alerts, if --sinks is given. Open NATS before.
	Sinks Part = (*node).openSinks
	// Checks answer checks and accept events.
	Checks Part = (*node).openChecks
	// Page is the page at /, with data of Checks.
	Page Part = (*node).openPage
)

// everyPart has the parts of each process, in the order of its start. The parts of its Role follow.
var everyPart = []Part{
	(*node).openTraces, // first, as it stops last
	(*node).openAccess, // tokens and certificates
	(*node).listen,     // all addresses: if a port is taken, the start ends before it has changed anything
	(*node).openRedis,  // compares prefix and partitions with those in Redis, and records the rules
	(*node).openOverrides,
	(*node).openActivity,
}

// Role holds the differences between processes: serve, work, dev and ratelimit.
type Role struct {
	Parts   []Part
	Example *windows.Rules // used if neither --rules nor --rls-config is given; nil: one of them is required
	Ready   func(Started)  // reports to the user that it runs; nil: it is logged
	Alone   bool           // it refuses a prefix that other processes use with other rules
	// RateLimit makes it a replacement for envoyproxy/ratelimit: the same addresses, and also limits of an xDS
	// server.
	RateLimit bool
}

// Started describes a process that runs.
type Started struct {
	Redis, NATS string // URLs of the servers it uses, which can hold passwords
	HTTP        string // URL of its own HTTP server
	Addresses   string // of all its servers, for people, one per line
	Tokens      bool   // callers need one
	Keys        *stream.Keys
	Rules       *windows.Rules
}

// gcPercent lets the heap grow to five times the live data before it is collected, because most of the heap is requests
// under way. This makes a check a fifth cheaper. GOGC and GOMEMLIMIT take precedence if they are set.
const gcPercent = 400

// Run builds a process part by part, in the order in which a start can fail, and runs it until ctx ends. It then stops
// cleanly, within --drain-timeout.
func Run(ctx context.Context, c Config, r Role) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := c.Settings.OpenLog(c.Stderr)
	backend.RedisLog.Store(log)
	rules, err := r.openRules(c.Settings, log)
	if err != nil {
		return err
	}
	n := newNode(c, rules, log)
	n.alone = r.Alone
	if r.RateLimit {
		n.transports = ratelimitTransports
	}
	defer n.stop()
	if err := n.open(ctx, slices.Concat(everyPart, r.Parts)); err != nil || ctx.Err() != nil {
		return err
	}
	n.background = append(n.background, n.announcer().Run)
	return n.run(ctx, func() {
		if r.Ready != nil {
			r.Ready(n.started())
		} else {
			n.logReady()
		}
	})
}

// run runs an opened process until ctx ends, and calls ready before it serves.
func (n *node) run(ctx context.Context, ready func()) error {
	n.followFiles()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if n.rules != nil { // sinks have none
		n.followRules(ctx, &running)
	}
	for _, do := range n.background {
		running.Go(func() { do(ctx) })
	}
	if arrived, err := n.waitForLimits(ctx); !arrived {
		return err
	}
	ready()
	return n.serveAndWork(ctx)
}

// open opens the parts in this order, and then creates the servers of all addresses. It returns no error if ctx has
// ended: a part that was stopped has not failed.
func (n *node) open(ctx context.Context, parts []Part) error {
	for _, open := range parts {
		err := open(n, ctx)
		if err != nil && ctx.Err() != nil {
			n.log.Info("stopped during the start", "error", err)
			return nil //nolint:nilerr // the part was stopped
		}
		if err != nil {
			return err
		}
	}
	for _, e := range n.endpoints {
		e.server = e.open(n)
	}
	return nil
}

func (r Role) openRules(c *settings.Config, log *slog.Logger) (ruleSource, error) {
	if r.RateLimit {
		return ratelimitRules(c, log)
	}
	return openRules(c.Rules, r.Example, log)
}

func (n *node) started() Started {
	return Started{Redis: n.redisURL, NATS: n.natsURL, HTTP: n.baseURL(), Addresses: n.servedAt(),
		Tokens: n.tokens != nil, Keys: n.keys, Rules: n.rules.Rules()}
}

func (n *node) logReady() {
	fields := []any{slog.String("command", n.command)}
	for _, e := range n.endpoints {
		fields = append(fields, slog.String(e.name, e.listener.Addr().String()))
	}
	rules := n.rules.Rules()
	fields = append(fields, "redis", redact.URL(n.redisURL), "prefix", n.keys.Prefix, "process", n.name,
		"rules", len(rules.List()), "fingerprint", rules.Fingerprint())
	n.log.Info("ready", fields...)
}

// serveAndWork serves and works until ctx ends, and then stops cleanly. The connections are closed after that (stop).
func (n *node) serveAndWork(ctx context.Context) error {
	// If one server fails, all stop.
	serving, failed := errgroup.WithContext(ctx)
	for _, e := range n.endpoints {
		serving.Go(func() error { return e.server.Serve(e.listener) })
	}
	if n.needsNATS() {
		serving.Go(func() error {
			select {
			case err := <-n.natsClosed: // after a restart the process has a new connection
				return fmt.Errorf("the connection to NATS is closed for good: %w", err)
			case <-failed.Done():
				return nil
			}
		})
	}
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var running sync.WaitGroup
	for _, do := range n.work {
		running.Go(func() { do(working) })
	}
	<-failed.Done()
	if ctx.Err() != nil {
		n.log.Info("stopping")
	}
	// Requests that are being answered and events that are being folded are finished concurrently, within one
	// timeout.
	stopWork()
	n.stopBy = time.Now().Add(n.config.Stop)
	within, cancel := context.WithDeadline(context.Background(), n.stopBy)
	defer cancel()
	// If Redis hangs, nothing waits for its answers after the timeout, because its clients are closed then.
	if n.closeRedis != nil {
		hung := time.AfterFunc(n.config.Stop, n.closeRedis)
		n.atStop(func() { hung.Stop() })
	}
	for _, e := range n.endpoints {
		running.Go(func() {
			if err := e.server.Shutdown(within); err != nil {
				n.log.Warn("requests under way were cut off after --drain-timeout", "interface", e.name, "error", err)
			}
		})
	}
	running.Wait()
	return serving.Wait()
}
