package main

import (
	"context"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/stream"
)

// openChecks makes the service that answers checks and takes events.
func (n *node) openChecks(context.Context) error {
	log, err := stream.NewLog(n.redis, n.keys, n.config.Stream.Retention)
	if err != nil {
		return err
	}
	var extractors *access.Extractors
	if path := n.config.Checks.Extractors; path != "" {
		if extractors, err = access.NewExtractors(path, n.log); err != nil {
			return blame("extractors", err)
		}
		n.fresh["extractors"] = extractors
	}
	n.service, err = check.NewService(check.Config{
		Counter: n.counter, Rules: n.rules.Rules, Metrics: check.NewMetrics(n.registry),
		Timeout: n.config.Checks.Timeout, Denials: n.config.Checks.Denials, Log: n.log,
	})
	if err != nil {
		return err
	}
	n.api, err = httpapi.NewServer(httpapi.Config{
		Checks: n.service, Log: log, Metrics: httpapi.NewMetrics(n.registry), Extractors: extractors,
		MaxBacklog: n.config.Checks.MaxBacklog, Keys: n.keys, BacklogTimeout: n.config.Checks.Timeout,
		Backlogs: func(ctx context.Context) (map[int]eventlog.Backlog, error) {
			return eventlog.Backlogs(ctx, n.redis, n.keys)
		},
	})
	return err
}
