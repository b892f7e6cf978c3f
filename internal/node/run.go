// Package node wires one running process together: serve, work, dev, sinks or ratelimit. Its settings come from package
// settings. It opens its parts in the order of this file: traces, tokens and certificates, addresses, Redis, overrides,
// activity; then those of its Role, such as NATS, workers, checks and the page; and last the servers of its addresses.
// From then on it serves and works until it is told to stop, and stops in reverse (node.go, which to read next). Each
// part is a file; servers.go lists what answers at which address.
package node

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Config is what a command gives to the process that it runs.
type Config struct {
	Command  string // its name, such as serve
	Build    Build
	Settings *settings.Config
	Stderr   io.Writer // of the log
}

// Part opens one part of a process, or says why it cannot.
type Part func(*node, context.Context) error

// Parts that only some processes have. A Role has them in the order of their start.
var (
	// NATS connects to NATS, or waits for it in the background. With "embedded" it starts one.
	NATS Part = (*node).openNATS
	// OptionalNATS connects where --nats is given.
	OptionalNATS Part = (*node).openOptionalNATS
	// Workers count events, release keys and publish to NATS, which comes before. consumers/worker.go says how events
	// are counted.
	Workers Part = (*node).openWorkers
	// Sinks deliver alerts, where --sinks is given. NATS comes before.
	Sinks Part = (*node).openSinks
	// Checks answer checks and take events.
	Checks Part = (*node).openChecks
	// Page is the page at /, of what Checks know.
	Page Part = (*node).openPage
)

// What each process has, in the order of its start: these, the parts of its Role, and lastPart.
var (
	everyPart = []Part{
		(*node).openTraces, // first, as it stops last
		(*node).openAccess, // tokens and certificates
		(*node).listen,     // all addresses: a taken port ends the start before anything is touched
		(*node).openRedis,  // compares prefix and partitions with what is there, and records the rules
		(*node).openOverrides,
		(*node).openActivity,
	}
	lastPart = []Part{(*node).openServers}
)

// Role holds the differences between processes: serve, work, dev and ratelimit.
type Role struct {
	Parts   []Part
	Example *windows.Rules // counts where neither --rules nor --rls-config is given; nil: one of them is required
	Ready   func(Started)  // tells the user that it runs; nil: the log does
	Alone   bool           // it refuses a prefix that other processes use with other rules
	// RateLimit has it stand in for envoyproxy/ratelimit: same addresses, and limits of an xDS server too.
	RateLimit bool
}

// Started is what can be told of a process that runs.
type Started struct {
	Redis, NATS string // URLs of the servers it uses, which can hold passwords
	HTTP        string // URL of its own
	Addresses   string // of all its servers, for people, a line each
	Tokens      bool   // callers need one
	Keys        *stream.Keys
	Rules       *windows.Rules
}

// gcPercent lets the heap grow to five times the live data before it is collected. The heap
// holds mostly requests under way, and a check is a fifth cheaper. GOGC and GOMEMLIMIT say
// otherwise if they are set.
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
	for _, open := range slices.Concat(everyPart, r.Parts, lastPart) {
		if err := open(n, ctx); err != nil {
			return err
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.followRules(ctx, &running)
	announcer := n.announcer()
	running.Go(func() { announcer.Run(ctx) })
	running.Go(func() { n.present().Overrides().Run(ctx) })
	running.Go(func() { n.activity.Run(ctx) })
	if n.feed != nil {
		running.Go(func() { n.feed.Run(ctx) })
	}
	n.followFiles(ctx, &running)
	followed := maps.Clone(n.fresh)
	followed["rules"] = n.rules
	running.Go(func() { repeatRefusals(ctx, log, followed) })
	if came, err := n.waitForLimits(ctx); !came {
		return err
	}
	if r.Ready != nil {
		r.Ready(n.started())
	} else {
		n.logReady()
	}
	return n.run(ctx)
}

// openRules opens the source of rules that the settings name.
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
