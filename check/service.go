package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

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
// from waiting for it, and each rule's on_error decides.
type Service struct {
	config  Config
	local   *windows.Local
	backlog backlog
	// One per lane: on a Cluster, a partition that moves or fails over must not
	// take the answer from the others. sony/gobreaker: small, widely used, no state
	// of its own to keep.
	breakers []*gobreaker.CircuitBreaker[windows.Verdict]
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
		s.breakers = append(s.breakers, gobreaker.NewCircuitBreaker[windows.Verdict](gobreaker.Settings{
			Name:    "redis",
			Timeout: 500 * time.Millisecond, // open for this long, then one check tries
			ReadyToTrip: func(n gobreaker.Counts) bool {
				return n.ConsecutiveFailures >= 5
			},
			IsSuccessful: func(err error) bool {
				return err == nil || errors.Is(err, context.Canceled) || stream.IsRefusal(err) ||
					errors.Is(err, gobreaker.ErrOpenState) // of another lane of the same check
			},
		}))
	}
	return s, nil
}

// Check answers one key. The error wraps api.ErrBadKey, ErrBadCount or
// ErrCostExceedsLimit where no answer can be given, and api.ErrUnavailable,
// together with an answer, where Redis is away and the rule says deny.
func (s *Service) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	all, err := s.CheckAll(ctx, []api.CheckRequest{req})
	if len(all.Checks) != 1 {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], err
}

// CheckAll answers several keys, all or nothing. Costs of a key that stands in
// several checks are added up.
func (s *Service) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	start := time.Now()
	defer func() { s.config.Metrics.seconds.Observe(time.Since(start).Seconds()) }()
	rules := s.config.Rules()
	out := api.ChecksAnswer{Allowed: true, Atomic: true, Checks: make([]api.CheckAnswer, len(reqs))}
	var asks []windows.Ask
	index := make([]int, len(reqs))          // request → its ask, -1 where no rule matches
	byKey := make(map[string]int, len(reqs)) // key → its ask
	for i, r := range reqs {
		cost := cmp.Or(r.Cost, 1)
		if err := (api.Event{Key: r.Key, Count: cost}).Validate(); err != nil {
			return api.ChecksAnswer{}, err
		}
		out.Checks[i] = api.CheckAnswer{Allowed: true, Key: r.Key, Cost: cost, Windows: []api.WindowState{}, Source: api.SourcePolicy}
		rule := rules.Match(r.Key)
		if rule == nil {
			index[i] = -1
			out.Checks[i].Note = "no rule matches this key"
			s.config.Metrics.checks.WithLabelValues("", "allowed").Inc()
			continue
		}
		at, seen := byKey[r.Key]
		if !seen {
			at = len(asks)
			byKey[r.Key] = at
			asks = append(asks, windows.Ask{Rule: rule, Key: r.Key})
		}
		asks[at].Cost += cost
		if asks[at].Cost > rule.Smallest() && !rule.Shadow {
			return api.ChecksAnswer{}, fmt.Errorf("%w: cost %d of key %s, the rule %q allows %d at most", api.ErrCostExceedsLimit, asks[at].Cost, api.Shorten(r.Key), rule.Name, rule.Smallest())
		}
		index[i] = at
	}
	if len(asks) == 0 {
		return out, nil
	}
	verdict, source, outcome, err := s.decide(ctx, asks)
	out.Allowed, out.Atomic = verdict.Allowed, verdict.Atomic
	for i := range out.Checks {
		if index[i] < 0 {
			continue
		}
		a, c := asks[index[i]], &out.Checks[i]
		c.Rule, c.Source, c.Shadow, c.Allowed = a.Rule.Name, source, a.Rule.Shadow, verdict.Allowed
		label := outcome
		if verdict.Items != nil {
			item := verdict.Items[index[i]]
			c.Windows = item.WindowStates(a.Rule)
			c.RetryAfterMs = item.RetryAfter.Milliseconds()
			if a.Rule.Shadow && c.RetryAfterMs != 0 {
				c.WouldDeny, c.RetryAfterMs = true, 0
				label += "shadow_denied"
			} else {
				label += outcomeOf(verdict.Allowed)
			}
			out.RetryAfterMs = max(out.RetryAfterMs, c.RetryAfterMs)
		} else {
			c.Note = "Redis cannot answer, the rule's on_error decided"
		}
		s.config.Metrics.checks.WithLabelValues(a.Rule.Name, label).Inc()
	}
	return out, err
}

func outcomeOf(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// decide asks Redis within the deadline, and where it cannot answer the
// strictest on_error among the rules: deny, then local, then allow. outcome is
// the metric's label, or its beginning where there is a standing.
func (s *Service) decide(ctx context.Context, asks []windows.Ask) (v windows.Verdict, source api.Source, outcome string, err error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	v, err = s.ask(within, asks)
	if err == nil {
		return v, api.SourceRedis, "", nil
	}
	if ctx.Err() != nil {
		return windows.Verdict{}, api.SourcePolicy, "canceled", fmt.Errorf("check: %w", ctx.Err())
	}
	policy := windows.OnErrorAllow
	for _, a := range asks {
		switch {
		case a.Rule.Shadow:
		case a.Rule.OnError == windows.OnErrorDeny:
			policy = windows.OnErrorDeny
		case a.Rule.OnError == windows.OnErrorLocal && policy == windows.OnErrorAllow:
			policy = windows.OnErrorLocal
		}
	}
	switch policy {
	case windows.OnErrorDeny:
		return windows.Verdict{Atomic: true}, api.SourcePolicy, "error_deny", fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	case windows.OnErrorLocal:
		v, err := s.local.Check(ctx, asks)
		return v, api.SourceLocal, "local_", err
	}
	return windows.Verdict{Allowed: true, Atomic: true}, api.SourcePolicy, "error_allow", nil
}

// ask asks Redis, through the breaker of each lane that answers for one of the keys.
func (s *Service) ask(ctx context.Context, asks []windows.Ask) (windows.Verdict, error) {
	ask := func() (windows.Verdict, error) { return s.config.Counter.Check(ctx, asks) }
	var lanes []int
	for _, a := range asks {
		if lane := s.config.Counter.Lane(a.Key); !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
			inner := ask
			ask = func() (windows.Verdict, error) { return s.breakers[lane].Execute(inner) }
		}
	}
	return ask()
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
