package node

import (
	"context"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

func (n *node) openChecks(context.Context) error {
	log, err := stream.NewLog(n.redis, n.keys, n.config.Stream.Retention)
	if err != nil {
		return err
	}
	var extractors *access.Extractors
	if path := n.config.Checks.Extractors; path != "" {
		if extractors, err = access.NewExtractors(path, n.log); err != nil {
			return settings.Blame("extractors", err)
		}
		n.reloaders["extractors"] = extractors
	}
	var transitions check.Transitions // nil without NATS
	if n.nc != nil {
		if n.history, err = alerts.NewHistory(n.nc, n.keys.Prefix); err != nil {
			return err
		}
		transitions = n.history
	}
	n.service, err = check.NewService(check.Config{
		Activity: n.activity, Transitions: transitions,
		Counter: n.counter, Rules: n.present, Metrics: check.NewMetrics(n.registry),
		Timeout: n.config.Checks.Timeout, Denials: n.config.Checks.Denials, Log: n.log,
		Instances: n.config.Checks.Instances,
		Retention: n.config.Stream.Retention, Tracer: n.tracer,
	})
	if err != nil {
		return err
	}
	n.atStop(n.service.Close) // after the last request, before the connections
	settings := envoy.Config{Rules: n.rules.Rules, Limits: n.limits, Tag: n.config.Rules.Tag,
		Headers: n.config.GRPC.Headers, HeaderNames: n.config.GRPC.Names, Metadata: n.config.GRPC.Metadata}
	if n.config.GRPC.Metrics {
		n.envoyMetrics = envoy.NewMetrics(n.registry, float64(n.config.GRPC.NearLimit)/100)
		settings.Metrics = n.envoyMetrics
	}
	settings.Ready = n.noLimits
	n.limiter = envoy.NewService(n.service, settings)
	bouncers, err := n.openBouncers()
	if err != nil {
		return err
	}
	n.api, err = httpapi.NewServer(httpapi.Config{
		Checks: n.service, Log: log, Metrics: httpapi.NewMetrics(n.registry), Extractors: extractors,
		Bouncers: bouncers, Tracer: n.tracer,
		Activity:   n.gatherActivity,
		MaxBacklog: n.config.Checks.MaxBacklog, Keys: n.keys, BacklogTimeout: n.config.Checks.Timeout,
		Backlogs: func(ctx context.Context) (map[int]eventlog.Backlog, error) {
			return eventlog.Backlogs(ctx, n.redis, n.keys)
		},
	})
	return err
}
