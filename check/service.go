package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Config of a Service. Counter, Log, Rules and Metrics are required.
type Config struct {
	Counter *windows.Redis
	Log     *stream.Log
	Rules   func() *windows.Rules
	Metrics *Metrics
	// Timeout bounds one check; default 250ms. After it the rule's on_error decides.
	Timeout time.Duration
	// AppendTimeout bounds one append, and one listing of who is throttled; default 5s.
	AppendTimeout time.Duration
	// MaxBacklog is how old the oldest unread event of a partition may be before
	// more events for it are refused; 0: they never are. Backlogs and Keys are
	// required with it.
	MaxBacklog time.Duration
	Backlogs   func(ctx context.Context) (map[int]stream.Backlog, error)
	Keys       *stream.Keys
	// Extractors are those of GET /v1/check?extractor=NAME; nil: there are none.
	Extractors *Extractors
}

// Service answers checks. While Redis cannot answer, a breaker keeps callers
// from waiting for it, and each rule's on_error decides (decide.go).
type Service struct {
	config  Config
	local   *windows.Local
	backlog backlog
	lanes   []*lane
}

// NewService checks the configuration.
func NewService(c Config) (*Service, error) {
	if c.Counter == nil || c.Log == nil || c.Rules == nil || c.Metrics == nil {
		return nil, errors.New("check: Counter, Log, Rules and Metrics are required")
	}
	c.Timeout = cmp.Or(c.Timeout, 250*time.Millisecond)
	c.AppendTimeout = cmp.Or(c.AppendTimeout, 5*time.Second)
	if c.MaxBacklog > 0 && (c.Backlogs == nil || c.Keys == nil) {
		return nil, errors.New("check: MaxBacklog needs Backlogs and Keys")
	}
	s := &Service{config: c, local: windows.NewLocal(nil), backlog: backlog{measure: c.Backlogs, now: time.Now}}
	for range c.Counter.Lanes() {
		s.lanes = append(s.lanes, newLane(c.Counter, c.Timeout))
	}
	return s, nil
}

// Peek says where a key stands; the error wraps api.ErrNoRule where no rule matches.
func (s *Service) Peek(ctx context.Context, key string) (api.KeyState, error) {
	rule, err := s.ruleOf(key)
	if err != nil {
		return api.KeyState{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	st, err := s.config.Counter.Peek(ctx, rule, key)
	if err != nil {
		return api.KeyState{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return api.KeyState{Key: key, Rule: rule.Name, Windows: st.WindowStates(rule)}, nil
}

// Reset forgets what a key has spent and ends its levels; it says whether there
// was anything to forget.
func (s *Service) Reset(ctx context.Context, key string) (bool, error) {
	rule, err := s.ruleOf(key)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	had, err := s.config.Counter.Reset(ctx, rule, key)
	if err != nil {
		return false, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return had, nil
}

// Throttled lists who is over a limit now.
func (s *Service) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return s.config.Counter.Throttled(ctx)
}

// Append puts valid events into the log and counts what became of them.
func (s *Service) Append(ctx context.Context, events []api.Event) stream.Outcome {
	ctx, cancel := context.WithTimeout(ctx, s.config.AppendTimeout)
	defer cancel()
	out := s.config.Log.Append(ctx, events)
	s.config.Metrics.appended.Add(float64(out.Appended))
	s.config.Metrics.refused.Add(float64(len(out.Refused)))
	s.config.Metrics.unknown.Add(float64(len(out.Unknown)))
	return out
}

func (s *Service) ruleOf(key string) (*windows.Rule, error) {
	if err := api.ValidateKey(key); err != nil {
		return nil, err
	}
	rule := s.config.Rules().Match(key)
	if rule == nil {
		return nil, fmt.Errorf("%w: key %s", api.ErrNoRule, api.Shorten(key))
	}
	return rule, nil
}
