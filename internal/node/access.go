package node

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// reloader has a value that is made from files, and makes it again when the files change.
type reloader interface {
	Reload() error
	Refused() error // why the last version read is not in force; nil: it is in force
	OnReload(func(error))
	Run(ctx context.Context)
}

func (n *node) openAccess(context.Context) (err error) {
	if path := n.config.Access.Tokens; path != "" {
		if n.tokens, err = access.NewTokens(path, n.registry, n.log); err != nil {
			return settings.Blame("tokens", err)
		}
		n.reloaders["tokens"] = n.tokens
	}
	config, files, err := n.config.Access.ServerTLS(n.log)
	if err != nil {
		return err
	}
	if n.tls = config; files != nil {
		n.reloaders["certificates"] = files
	}
	if s, ok := n.rules.(*xdsRules); ok && s.certificates != nil {
		n.reloaders["xds-certificates"] = s.certificates
	}
	return nil
}

// needsAuthentication reports whether callers must authenticate.
func (n *node) needsAuthentication() bool { return n.tokens != nil || n.config.Access.ClientCA != "" }

// followFiles reloads tokens, certificates, extractors and sinks when their files
// change, and on SIGHUP. It logs every repeatEvery which of these files, and of the rules, are refused.
func (n *node) followFiles() {
	reloads := promauto.With(n.registry).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_file_reloads_total",
		Help: "Attempts to reload a file, by what it has (tokens, certificates, extractors, sinks) and outcome."},
		[]string{"file", "outcome"})
	refused := promauto.With(n.registry).NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_file_refused",
		Help: "1 while the last read of a file is refused and the previous version stays in force."}, []string{"file"})
	for name, f := range n.reloaders {
		ok, failed := reloads.WithLabelValues(name, "ok"), reloads.WithLabelValues(name, "error")
		isRefused := refused.WithLabelValues(name)
		f.OnReload(func(err error) {
			if err != nil {
				failed.Inc()
				isRefused.Set(1)
			} else {
				ok.Inc()
				isRefused.Set(0)
			}
		})
		n.follow(f)
	}
	followed := maps.Clone(n.reloaders)
	if n.rules != nil { // sinks have none
		followed["rules"] = n.rules
	}
	n.background = append(n.background, func(ctx context.Context) { repeatRefusals(ctx, n.log, followed) })
}

// repeatEvery is how often a refusal is logged again, as long as it lasts.
const repeatEvery = 5 * time.Minute

// repeatRefusals logs every repeatEvery what is refused, until ctx ends.
func repeatRefusals(ctx context.Context, log *slog.Logger, all map[string]reloader) {
	for pause.For(ctx, repeatEvery) {
		for name, f := range all {
			if err := f.Refused(); err != nil {
				log.Error("still refused; the previous version stays in force", "what", name, "error", err)
			}
		}
	}
}

// follow reloads f when its files change and on SIGHUP. f logs a version that it cannot use, and keeps the one before.
func (n *node) follow(f reloader) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	n.background = append(n.background, f.Run, func(ctx context.Context) {
		defer signal.Stop(hup)
		for {
			select {
			case <-hup:
				_ = f.Reload()
			case <-ctx.Done():
				return
			}
		}
	})
}
