package node

import (
	"context"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// sinksParts are the parts of a process that only delivers alerts: it needs no Redis.
var sinksParts = []Part{(*node).openAccess, (*node).listen, NATS, Sinks}

// RunSinks runs a process that only delivers alerts, until ctx ends. It needs no Redis.
func RunSinks(ctx context.Context, c Config) error {
	log := c.Settings.OpenLog(c.Stderr)
	if _, err := c.Settings.SinksFile(); err != nil {
		return err
	}
	n := newNode(c, nil, log)
	defer n.stop()
	if err := n.open(ctx, sinksParts); err != nil || ctx.Err() != nil {
		return err
	}
	return n.run(ctx, func() {
		log.Info("ready", "command", n.command, "http", n.endpoints[0].listener.Addr().String(), "nats",
			redact.URL(n.natsURL), "prefix", n.config.Stream.Prefix, "process", n.name)
	})
}

func (n *node) openSinks(context.Context) error {
	if n.config.Sinks == "" {
		return nil
	}
	file, err := sinks.Open(n.config.Sinks, n.log)
	if err != nil {
		return settings.Blame("sinks", err)
	}
	n.reloaders["sinks"] = file
	group, err := sinks.NewGroup(sinks.Config{NATS: n.nc, Prefix: n.config.Stream.Prefix, Name: n.name,
		Replicas: n.config.NATS.Replicas, File: file, Metrics: sinks.NewMetrics(n.registry), Stop: n.config.Stop,
		Log: n.log})
	if err == nil {
		n.work = append(n.work, group.Run)
	}
	return err
}
