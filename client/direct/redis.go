package direct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/transport"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Config: Rules is required, the rest has defaults.
type Config struct {
	// Rules returns the current rules, as windows.Source's Rules does. They must be the rules of every `serve` and
	// `work` of the prefix.
	Rules func() *windows.Rules
	// Prefix and Partitions of the keys; default "sc" and 16.
	Prefix     string
	Partitions int
	// Denials is how many denied keys are remembered, to be denied without Redis until their
	// wait has passed, as `serve` does (docs/client.md); 0: only keys whose rule has lease.
	Denials int
	// Now replaces the clocks of Redis and of the process in tests.
	Now func() int64
}

// Redis is a Checker. The on_error of a rule is for servers: here client.Client and its policies decide if Redis
// cannot answer.
type Redis struct {
	checks  *check.Service
	counter *counters.Redis
	rules   func() *windows.Rules // with the changes of operators
}

// timeout bounds a check whose context has no earlier deadline.
const timeout = 5 * time.Second

// NewRedis makes a Checker over a connection of the caller. It reads in Redis whether the prefix is used with the
// same number of partitions, so Redis must answer at the start.
//
// The connection must send nothing twice and must keep to the context's deadline: redis.Options{MaxRetries: -1,
// ContextTimeoutEnabled: true}, on a Cluster stream.NewCluster.
func NewRedis(ctx context.Context, c redis.UniversalClient, config Config) (*Redis, error) {
	if c == nil || config.Rules == nil || config.Rules() == nil {
		return nil, errors.New("direct: a Redis client and Rules are required")
	}
	if err := redisclient.RequireDeadlines(c); err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	if config.Prefix == "" {
		config.Prefix = stream.DefaultPrefix
	}
	if config.Partitions == 0 {
		config.Partitions = stream.DefaultPartitions
	}
	keys, err := stream.NewKeys(config.Prefix, config.Partitions)
	if err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	r := &Redis{counter: counters.New(c, keys)}
	r.counter.Now = config.Now
	r.counter.ReportCorrupt(nil, slog.Default())
	r.rules = r.counter.Present(config.Rules, nil)
	checks := check.Config{Counter: r.counter, Rules: r.rules, Timeout: timeout, NoAnswer: noAnswer,
		Denials: config.Denials}
	if config.Now != nil {
		checks.Now = func() time.Time { return time.UnixMilli(config.Now()) }
	}
	r.checks, err = check.NewService(checks)
	if err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	if err := stream.CheckMeta(ctx, c, keys); err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	return r, r.RecordRules(ctx)
}

// RecordRules records the current rules, as `serve` does at its start. Call it after each change of the rules
// (windows.Source.OnReload). Otherwise the counters of a window that grew would end too early.
func (r *Redis) RecordRules(ctx context.Context) error {
	if err := r.counter.RecordRules(ctx, r.rules()); err != nil {
		return fmt.Errorf("direct: %w", err)
	}
	return nil
}

// Check implements client.Checker.
func (r *Redis) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	req, err := transport.Validate(ctx, req)
	if err != nil {
		return api.CheckAnswer{}, err
	}
	answer, err := r.checks.Check(ctx, req)
	return transport.Decided(answer, transport.ErrorOf(err, req))
}

// Close gives back the units of hot keys that this process may still spend. Without Close they are charged. The
// connection stays open.
func (r *Redis) Close() { r.checks.Close() }

// CheckAll implements client.Checker.
func (r *Redis) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	reqs, err := transport.ValidateAll(ctx, reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	all, err := r.checks.CheckAll(ctx, reqs)
	return transport.Decided(all, transport.ErrorOf(err, reqs...))
}

// CheckEach implements client.Checker. It runs one script for all requests on a single server, and one for each
// partition on a Cluster.
func (r *Redis) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	return transport.EachValid(ctx, reqs, func(reqs []api.CheckRequest) ([]api.Each, error) {
		list := r.checks.CheckEach(ctx, reqs)
		for i, e := range list {
			list[i].CheckAnswer, list[i].Err = transport.Decided(e.CheckAnswer, e.Err)
		}
		return list, nil
	})
}

// Peek implements client.Checker.
func (r *Redis) Peek(ctx context.Context, key string) (api.KeyState, error) {
	state, err := r.checks.Peek(ctx, key)
	if errors.Is(err, api.ErrUnavailable) {
		err = transport.NotSent(err) // a look charges nothing, whether it was sent or not
	}
	return state, err
}

// noAnswer adds to an error what may have happened to a check that Redis did not decide.
func noAnswer(err error) error {
	switch {
	case errors.Is(err, check.ErrPartlyCharged):
		return transport.Lost(err)
	case redisclient.IsRefusal(err): // for example, this key's state is broken; Redis works
		return fmt.Errorf("%w: %w: %w", api.ErrNoAnswer, api.ErrUnavailable, err)
	case errors.Is(err, api.ErrNotSent), redisclient.NotSent(err):
		return transport.NotSent(err)
	}
	return transport.Lost(err)
}
