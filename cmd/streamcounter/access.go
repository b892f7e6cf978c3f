package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/check/access"
)

// fresh is what is made of files and follows them.
type fresh interface {
	Reload() error
	OnReload(func(error))
	Run(ctx context.Context)
}

// openAccess reads the tokens and certificates.
func (n *node) openAccess(context.Context) (err error) {
	if path := n.config.Access.Tokens; path != "" {
		if n.tokens, err = access.NewTokens(path, n.registry, n.log); err != nil {
			return blame("tokens", err)
		}
		n.fresh["tokens"] = n.tokens
	}
	config, files, err := serverTLS(n.config.Access, n.log)
	if err != nil {
		return err
	}
	if n.tls = config; files != nil {
		n.fresh["certificates"] = files
	}
	return nil
}

// guarded reports whether callers must authenticate.
func (n *node) guarded() bool { return n.tokens != nil || n.config.Access.ClientCA != "" }

// followFiles reloads tokens, certificates, extractors and sinks when their files
// change, and on SIGHUP.
func (n *node) followFiles(ctx context.Context, running *sync.WaitGroup) {
	reloads := promauto.With(n.registry).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_file_reloads_total",
		Help: "Attempts to reload a file, by what it has (tokens, certificates, extractors, sinks) and outcome."},
		[]string{"file", "outcome"})
	for name, f := range n.fresh {
		ok, failed := reloads.WithLabelValues(name, "ok"), reloads.WithLabelValues(name, "error")
		f.OnReload(func(err error) {
			if err != nil {
				failed.Inc()
			} else {
				ok.Inc()
			}
		})
		follow(ctx, running, f)
	}
}

// follow reloads when the files change and on SIGHUP, until ctx ends. What f cannot
// take it logs, and keeps what was there.
func follow(ctx context.Context, running *sync.WaitGroup, f fresh) {
	running.Go(func() { f.Run(ctx) })
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	running.Go(func() {
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
