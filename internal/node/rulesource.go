package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	envoyconfig "github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/processes"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

// ruleSource holds the rules that are made from files, and follows these files.
type ruleSource interface {
	reloader
	Rules() *windows.Rules
}

// openRules opens the rules file and the limits of --rls-config as one source of rules. With limits, a process needs
// no rules file. example, if it is not nil, is used if no rules file was given.
func openRules(c settings.Rules, example *windows.Rules, log *slog.Logger) (ruleSource, error) {
	if err := c.Options.Validate(); err != nil {
		return nil, settings.Blame("rls-config", err)
	}
	switch {
	case c.Limits != "":
		config := envoyconfig.SourceConfig{Limits: c.Limits, Rules: c.File, Options: c.Options, Log: log}
		if c.File == "" {
			config.Base = example
		}
		source, err := envoyconfig.NewSource(config)
		switch {
		case err == nil:
			return source, nil
		case c.File != "":
			return nil, fmt.Errorf("--rules (%s) and --rls-config (%s): %w", settings.EnvName("rules"),
				settings.EnvName("rls-config"), err)
		}
		return nil, settings.Blame("rls-config", err)
	case c.File != "":
		source, err := windows.NewSource(c.File, log)
		if err != nil {
			return nil, settings.Blame("rules", err)
		}
		return source, nil
	case example != nil:
		return windows.Fixed(example), nil
	}
	return nil, settings.UsageErrorf("missing --rules FILE (%s) or --rls-config; `streamcounter dev` runs with an "+
		"example", settings.EnvName("rules"))
}

// limits returns the limits that belong to the present rules, nil without --rls-config.
func (n *node) limits() *envoyconfig.Limits {
	if s, ok := n.rules.(interface{ Limits() *envoyconfig.Limits }); ok {
		return s.Limits()
	}
	return nil
}

// followRules reloads the rules on SIGHUP and when the file changes.
func (n *node) followRules(ctx context.Context, running *sync.WaitGroup) {
	reloads := promauto.With(n.registry).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_reloads_total",
		Help: "Attempts to reload the rules."}, []string{"outcome"})
	reloads.WithLabelValues("ok").Add(0)
	reloads.WithLabelValues("error").Add(0)
	before := n.rules.Rules()
	if n.noLimits() == nil { // the files were loaded at the start
		n.envoyMetrics.Loaded(nil)
	}
	stateGauge(n.registry, "rules_refused", "1 while the newest rules or limits are refused, all or some of them.",
		func() bool { return n.rules.Refused() != nil })
	n.rules.OnReload(func(err error) {
		refused := n.rules.Refused() // an xDS server may have some limits refused while the others are in force
		n.envoyMetrics.Loaded(refused)
		outcome := "ok"
		if refused != nil {
			outcome = "error"
		}
		reloads.WithLabelValues(outcome).Inc()
		if err != nil {
			return
		}
		n.logCountedAnew(before)
		before = n.rules.Rules()
		if err := n.recordRules(ctx); err != nil {
			n.log.Warn("recording the changed rules in Redis failed, trying again; until then they count as new",
				"error", err)
			running.Go(func() { n.recordRulesLater(ctx) })
		}
		if n.pool != nil {
			n.pool.Recheck()
		}
	})
	n.follow(n.rules)
}

// logCountedAnew logs the windows whose keys start from zero, because the rules count them by another algorithm than
// before.
func (n *node) logCountedAnew(before *windows.Rules) {
	for _, r := range n.rules.Rules().List() {
		old := before.Named(r.Name)
		if old == nil {
			continue
		}
		for _, w := range r.CountedAnew(old) {
			n.log.Warn("a window has another algorithm now; its keys start from zero", "rule", r.Name,
				"per", w.PerText(), "algorithm", r.AlgorithmOf(w))
		}
	}
}

func (n *node) recordRules(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return n.counter.RecordRules(within, n.rules.Rules())
}

func (n *node) recordRulesLater(ctx context.Context) {
	for pause.For(ctx, time.Second) {
		if n.recordRules(ctx) == nil {
			n.log.Info("the changed rules are recorded in Redis")
			return
		}
	}
}

// processName is the name of this process for the other processes of the prefix.
func (n *node) processName() string { return n.command + " " + n.name }

// announcer announces the rules of this process to the other processes of the prefix. It also logs and measures which
// of them have other rules.
func (n *node) announcer() *processes.Announcer {
	return processes.NewAnnouncer(processes.Config{
		Redis: n.redis, Keys: n.keys, Name: n.processName(), Registry: n.registry, Log: n.log,
		Fingerprint: func() string { return n.rules.Rules().Fingerprint() },
	})
}
