package direct

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Config: Rules is required, the rest has defaults.
type Config struct {
	// Rules gives the present rules, as windows.Source's Rules does. They must be
	// those of every `serve` and `work` of the prefix.
	Rules func() *windows.Rules
	// Prefix and Partitions of the keys; default "sc" and 16.
	Prefix     string
	Partitions int
	// Now stands in for Redis's clock in tests.
	Now func() int64
}

// Redis is a Checker. What a rule says under on_error is for servers: here
// client.Client and its policies decide where Redis cannot answer.
type Redis struct {
	counter *windows.Redis
	rules   func() *windows.Rules
}

// NewRedis counts over a connection of the caller's. It asks Redis whether the
// prefix is used with as many partitions, so Redis must answer at the start.
//
// The connection must send nothing twice and keep to the context's deadline:
// redis.Options{MaxRetries: -1, ContextTimeoutEnabled: true}, on a Cluster stream.NewCluster.
func NewRedis(ctx context.Context, c redis.UniversalClient, config Config) (*Redis, error) {
	if c == nil || config.Rules == nil {
		return nil, errors.New("direct: a Redis client and Rules are required")
	}
	if err := suits(c); err != nil {
		return nil, err
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
	if err := stream.CheckMeta(ctx, c, keys); err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	r := &Redis{counter: windows.NewRedis(c, keys), rules: config.Rules}
	r.counter.Now = config.Now
	return r, r.Learn(ctx)
}

// suits refuses a connection that could charge twice or answer too late.
func suits(c redis.UniversalClient) error {
	single, ok := c.(*redis.Client)
	if !ok {
		return nil // stream.NewCluster sees to both
	}
	if n := single.Options().MaxRetries; n > 0 {
		return fmt.Errorf("direct: the Redis client sends a command up to %d times: set MaxRetries to -1, as a check that is sent twice charges twice", n+1)
	}
	if !single.Options().ContextTimeoutEnabled {
		return errors.New("direct: the Redis client does not keep to deadlines: set ContextTimeoutEnabled")
	}
	return nil
}

// Learn notes the present rules, as `serve` does at its start. Call it after each
// change of them (windows.Source.OnReload), lest counters of a window that grew
// end too early.
func (r *Redis) Learn(ctx context.Context) error {
	if err := r.counter.Learn(ctx, r.rules()); err != nil {
		return fmt.Errorf("direct: %w", err)
	}
	return nil
}

// Check implements client.Checker.
func (r *Redis) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	all, err := r.CheckAll(ctx, []api.CheckRequest{req})
	if err != nil {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], nil
}

// CheckAll implements client.Checker.
func (r *Redis) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	reqs, err := client.ValidateAll(reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	b, err := match(r.rules(), reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	v := windows.Verdict{Allowed: true, Atomic: true}
	if len(b.asks) > 0 {
		v, err = r.counter.Check(ctx, b.asks)
		switch {
		case err != nil && v.Items != nil: // of several partitions, some may be charged
			return api.ChecksAnswer{}, client.Lost(err)
		case err != nil:
			return api.ChecksAnswer{}, failure(err)
		}
	}
	return b.answer(v), nil
}

// CheckEach implements client.Checker: on a single server one script for all of
// them, on a Cluster one for each.
func (r *Redis) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]client.Each, error) {
	return client.EachValid(reqs, func(reqs []api.CheckRequest) ([]client.Each, error) {
		if r.counter.Lanes() > 1 {
			return client.InParallel(ctx, reqs, r.Check), nil
		}
		out := make([]client.Each, len(reqs))
		var calls [][]windows.Ask
		batches := make([]batch, len(reqs))
		rules := r.rules() // the same for all: else one script might not do, and the first of two could have charged
		for i := range reqs {
			batches[i], out[i].Err = match(rules, reqs[i:i+1])
			if out[i].Err == nil && len(batches[i].asks) > 0 {
				calls = append(calls, batches[i].asks)
			}
		}
		var verdicts []windows.Verdict
		if len(calls) > 0 {
			var err error
			if verdicts, err = r.counter.CheckMany(ctx, calls); err != nil {
				return nil, failure(err)
			}
		}
		for i, b := range batches {
			switch {
			case out[i].Err != nil:
			case len(b.asks) == 0:
				out[i].CheckAnswer = b.answer(windows.Verdict{Allowed: true}).Checks[0]
			default:
				out[i].CheckAnswer, verdicts = b.answer(verdicts[0]).Checks[0], verdicts[1:]
			}
		}
		return out, nil
	})
}

// Peek implements client.Checker.
func (r *Redis) Peek(ctx context.Context, key string) (api.KeyState, error) {
	if err := api.ValidateKey(key); err != nil {
		return api.KeyState{}, err
	}
	rule := r.rules().Match(key)
	if rule == nil {
		return api.KeyState{}, fmt.Errorf("%w: key %s", api.ErrNoRule, api.Shorten(key))
	}
	standing, err := r.counter.Peek(ctx, rule, key)
	if err != nil {
		return api.KeyState{}, client.NotSent(err) // a look: sent or not, it charged nothing
	}
	return api.KeyState{Key: key, Rule: rule.Name, Windows: standing.WindowStates(rule)}, nil
}

// failure says what may have become of a check that Redis did not decide.
func failure(err error) error {
	var answered redis.Error
	var op *net.OpError
	switch {
	case stream.IsRefusal(err): // this key's state is broken, say; Redis is there
		return fmt.Errorf("%w: %w: %w", client.ErrNoAnswer, api.ErrUnavailable, err)
	case errors.As(err, &answered) && !errors.Is(err, redis.Nil),
		errors.As(err, &op) && op.Op == "dial",
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return client.NotSent(err)
	}
	return client.Lost(err)
}
