package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/net/netutil"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/reload"
)

// accessSettings are those of every command that listens: who may reach it.
var accessSettings = []string{"tokens", "tls-cert", "tls-key", "tls-client-ca", "open", "max-connections"}

// fresh is what is made of files and follows them.
type fresh interface {
	Reload() error
	OnReload(func(error))
	Run(ctx context.Context, tick <-chan time.Time)
}

// openAccess reads the tokens and certificates.
func (n *node) openAccess() (err error) {
	if path := n.text("tokens"); path != "" {
		if n.tokens, err = check.NewTokens(path, n.registry, n.log); err != nil {
			return blame("tokens", err)
		}
		n.fresh["tokens"] = n.tokens
	}
	config, files, err := serverTLS(&n.options, n.log)
	if err != nil {
		return err
	}
	if n.tls = config; files != nil {
		n.fresh["certificates"] = files
	}
	n.router = check.NewRouter(n.tokens, n.metricsRoute())
	return nil
}

// guarded tells whether anything keeps strangers out.
func (n *node) guarded() bool { return n.tokens != nil || n.text("tls-client-ca") != "" }

// listen opens the address of a setting, so that a taken port ends the start. It
// does not open one that others can reach where nothing keeps them out.
func (n *node) listen(name string) (net.Listener, error) {
	addr := n.text(name)
	most := n.number("max-connections")
	if n.err != nil {
		return nil, n.err
	}
	if err := n.mayListen(name, addr); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, portTaken(name, addr, err)
	}
	// golang.org/x/net/netutil: a few lines that the Go team keeps. Beyond the bound a
	// caller waits for one that goes, rather than for memory that is not there.
	return netutil.LimitListener(l, most), nil
}

// mayListen refuses what a port scan of a public address would find.
func (n *node) mayListen(name, addr string) error {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return blame(name, err)
	}
	if n.guarded() || at.IP.IsLoopback() { // no address at all is all of them
		return nil
	}
	if !n.flag("open") {
		return blame(name, fmt.Errorf("%s can be reached by others, and nothing keeps them out: give --tokens (a file of who may do what) or --tls-client-ca (client certificates); "+
			"or listen on 127.0.0.1; or, where the network itself keeps strangers out, say --open (%s=true)", addr, lookUp("open").env()))
	}
	n.log.Warn("OPEN: whoever reaches this address may do everything, no token and no certificate is asked for", "setting", name, "address", addr, "mend", "--tokens FILE or --tls-client-ca FILE")
	return nil
}

// keepFilesFresh reloads tokens, certificates and extractors when their files
// change, and on SIGHUP.
func (n *node) keepFilesFresh(ctx context.Context, running *sync.WaitGroup) {
	reloads := promauto.With(n.registry).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_file_reloads_total",
		Help: "Attempts to reload a file, by what it has (tokens, certificates, extractors) and outcome."}, []string{"file", "outcome"})
	for name, f := range n.fresh {
		ok, failed := reloads.WithLabelValues(name, "ok"), reloads.WithLabelValues(name, "error")
		f.OnReload(func(err error) {
			if err != nil {
				failed.Inc()
			} else {
				ok.Inc()
			}
		})
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		running.Go(func() {
			defer signal.Stop(hup)
			for {
				select {
				case <-hup:
					_ = f.Reload() // it has logged its error and kept what was there
				case <-ctx.Done():
					return
				}
			}
		})
		running.Go(func() {
			tick := time.NewTicker(reload.Every)
			defer tick.Stop()
			f.Run(ctx, tick.C)
		})
	}
}

// checkAccess finds mistakes that need no file.
func (o *options) checkAccess() {
	o.number("max-connections")
	o.flag("open")
	for _, name := range []string{"redis", "nats"} {
		if err := o.clientFiles(name).check(); err != nil && o.err == nil {
			o.err = err
		}
	}
	if o.text("nats-creds") != "" && o.text("nats-nkey") != "" && o.err == nil {
		o.err = blame("nats-creds", errors.New("give --nats-creds or --nats-nkey, not both"))
	}
}
