package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Config of a Service. Counter and Rules are required.
type Config struct {
	Counter *windows.Redis
	Rules   func() *windows.Rules
	Metrics *Metrics // nil: nothing is counted
	// Timeout bounds one check; default 250ms. After it the rule's on_error decides.
	Timeout time.Duration
	// NoAnswer gives the error of a call that Redis did not decide, in place of
	// on_error and the breakers: for a caller that has policies of its own. It is
	// given an error that wraps api.ErrNotSent where nothing was sent, and
	// ErrPartlyCharged where something was charged. Nil: on_error decides.
	NoAnswer func(error) error
	// Denials is how many keys that are denied are remembered, to be denied without Redis until
	// their wait has passed (denials.go); of more, those asked for longest ago are forgotten. 0: none.
	Denials int
	// Now stands in for this process's clock in tests, as far as Denials go by it.
	Now func() time.Time
	// Log receives when Redis stops answering, and when it answers again; default slog.Default().
	Log *slog.Logger
}

// maxLocalKeys bounds what the counts of this process take while Redis is away,
// some 40 MB, whoever asks for how many keys (docs/decisions/0030).
const maxLocalKeys = 100_000

// Service answers checks. While Redis cannot answer, a breaker keeps callers
// from waiting for it, and each rule's on_error decides (decide.go).
type Service struct {
	config Config
	local  *windows.Local
	shards []*shard
	outage *outage

	denials *denials // nil: none are remembered
}

// NewService checks the configuration.
func NewService(c Config) (*Service, error) {
	if c.Counter == nil || c.Rules == nil {
		return nil, errors.New("check: Counter and Rules are required")
	}
	if err := c.Counter.RequireNoRetry(); err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	c.Timeout = cmp.Or(c.Timeout, 250*time.Millisecond)
	s := &Service{config: c, local: windows.NewLocal(maxLocalKeys, nil),
		outage: newOutage(cmp.Or(c.Log, slog.Default()), c.Rules)}
	if c.Denials > 0 {
		if c.Now == nil {
			c.Now = time.Now
		}
		s.denials = newDenials(c.Counter, c.Denials, c.Now, c.Timeout)
	}
	for i := range c.Counter.Lanes() {
		changed := func(to gobreaker.State) { s.outage.changed(i, to) }
		s.shards = append(s.shards, newShard(c.Counter, c.Timeout, c.NoAnswer == nil, changed, s.denials))
	}
	return s, nil
}

// Peek says where a key stands; the error wraps api.ErrNoRule where no rule matches.
func (s *Service) Peek(ctx context.Context, key string) (api.KeyState, error) {
	plan, err := s.planOf(key)
	if err != nil {
		return api.KeyState{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	st, err := s.config.Counter.Peek(ctx, plan, key)
	if err != nil {
		return api.KeyState{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return st.KeyState(plan, key), nil
}

// Reset forgets what a key has used and ends its levels; it says whether there
// was anything to forget.
func (s *Service) Reset(ctx context.Context, key string) (bool, error) {
	plan, err := s.planOf(key)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	had, err := s.config.Counter.Reset(ctx, plan, key)
	s.denials.forget(key)
	if err != nil {
		return false, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return had, nil
}

// Throttled lists who is over a limit now.
func (s *Service) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return s.config.Counter.Throttled(ctx)
}

func (s *Service) planOf(key string) (*windows.Plan, error) {
	if err := api.ValidateKey(key); err != nil {
		return nil, err
	}
	plan := s.config.Rules().Match(key)
	if plan == nil {
		return nil, fmt.Errorf("%w: key %s", api.ErrNoRule, api.Shorten(key))
	}
	return plan, nil
}
