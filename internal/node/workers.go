package node

import (
	"context"
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// openWorkers creates the pool of consumers: worker, reclaimer, sweeper, relay.
func (n *node) openWorkers(ctx context.Context) error {
	metrics := consumers.NewMetrics(n.registry)
	publisher, err := alerts.NewPublisher(n.nc, alerts.PublisherConfig{
		Prefix: n.keys.Prefix, Replicas: n.config.NATS.Replicas, OnOutcome: metrics.Publish, Tracer: n.tracer,
		Log: n.log,
	})
	if err != nil {
		return err
	}
	if n.nc.IsConnected() {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		switch err := publisher.Ensure(within); {
		case err == nil:
		case alerts.HasNoLeader(err):
			n.log.Warn("JetStream does not answer; transitions are published when it does", "error", err)
		default:
			return settings.Blame("nats",
				fmt.Errorf(
					"the JetStream streams cannot be created (is JetStream enabled, and the server 2.11 or later?): %w",
					err))
		}
	}
	readPause := n.config.Work.ReadPause
	if readPause == 0 {
		readPause = -1 // no pause: in consumers.Config 0 means the default
	}
	config := consumers.Config{
		Redis: n.redis, Blocking: n.blocking, Keys: n.keys, Counter: n.counter, Rules: n.present, Activity: n.activity,
		Publisher: publisher, Decisions: publisher, Metrics: metrics, Consumer: n.name,
		MaxBatch: n.config.Work.Batch, ReadPause: readPause, MinIdle: n.config.Work.MinIdle,
		Retention:    n.config.Stream.Retention,
		DrainTimeout: n.config.Stop, Tracer: n.tracer, Log: n.log,
	}
	if n.pool, err = consumers.NewPool(config); err == nil {
		n.work = append(n.work, n.pool.Run)
	}
	return err
}
