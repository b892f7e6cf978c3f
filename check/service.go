package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// Config of a Service. Counter and Rules are required.
type Config struct {
	Counter *counters.Redis
	Rules   func() *windows.Rules // with the changes of operators (windows.Under), if there can be any
	Metrics *Metrics              // nil: nothing is counted
	// Activity records the requests by key; nil: nothing is recorded.
	Activity Activity
	// Transitions returns the alerts and decisions of a key's history; nil: a history has only the changes of
	// operators.
	Transitions Transitions
	// Timeout bounds one check; default 250ms. After it the rule's on_error decides.
	Timeout time.Duration
	// Instances is how many processes share the limits of rules with on_error: local while each of them counts alone;
	// default 1. Each admits the limit divided by this, rounded down, at least 1 unit.
	Instances int
	// NoAnswer returns the error of a call that Redis did not decide, in place of on_error and the breakers. It is
	// for a caller that has its own policies. Its argument wraps api.ErrNotSent if nothing was sent, and
	// ErrPartlyCharged if something was charged. Nil: on_error decides.
	NoAnswer func(error) error
	// Denials is how many denied keys are remembered, to be denied without Redis until their wait has passed
	// (denials.go). If there are more, the ones that were asked for longest ago are forgotten. 0: only keys whose
	// rule has lease are remembered.
	Denials int
	// Retention is how long the answers to api.Repeatable calls are remembered, unless the
	// caller wants less; default 10m.
	Retention time.Duration
	// Now replaces this process's clock in tests, for Denials and leases.
	Now func() time.Time
	// Tracer starts a span for each script call, below the span of the caller's context; nil: none.
	Tracer trace.Tracer
	// Log receives a record when Redis stops answering, and when it answers again; default slog.Default().
	Log *slog.Logger
}

// Activity records who asks for how much.
type Activity interface {
	// Checks records answers for one key, and the units that all of them asked for.
	Checks(rule, key string, answers, units int64, allowed bool)
}

const defaultRetention = 10 * time.Minute

// maxLocalKeys bounds the memory of this process's counts while Redis is away: some 40 MB, however many keys are
// asked for (docs/decisions/0021-client-fallback-policies).
const maxLocalKeys = 100_000

// Service answers checks. While Redis cannot answer, a breaker keeps callers
// from waiting for it, and each rule's on_error decides (decide.go).
type Service struct {
	config Config
	held   *reservations.Store
	local  *counters.Local
	shards []*shard
	outage *outage

	answerers []answerer // leases, then denials
	denials   *denials
	leases    *leases
	announced *lru.Cache[string, announced] // keys that patterns block
}

// NewService checks the configuration.
func NewService(c Config) (*Service, error) {
	if c.Counter == nil || c.Rules == nil {
		return nil, errors.New("check: Counter and Rules are required")
	}
	if err := c.Counter.RequireNoRetry(); err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	if c.Instances < 0 {
		return nil, fmt.Errorf("check: Instances %d: expected at least 1", c.Instances)
	}
	c.Timeout = cmp.Or(c.Timeout, 250*time.Millisecond)
	c.Retention = cmp.Or(c.Retention, defaultRetention)
	c.Instances = cmp.Or(c.Instances, 1)
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Service{config: c, held: reservations.New(c.Counter), local: counters.NewLocal(maxLocalKeys, nil),
		outage: newOutage(cmp.Or(c.Log, slog.Default()), c.Rules)}
	s.outage.probe = s.probe
	s.announced, _ = lru.New[string, announced](maxAnnounced) // the error is for a size below 1
	s.local.Instances = c.Instances
	s.denials = newDenials(c.Counter, c.Denials, c.Now, c.Timeout)
	s.leases = newLeases(s)
	s.answerers = []answerer{s.leases, s.denials}
	for i := range c.Counter.Shards() {
		changed := func(to gobreaker.State, why error) { s.outage.changed(i, to, why) }
		s.shards = append(s.shards, newShard(c, changed, s.denials))
	}
	return s, nil
}

// Peek returns the state of a key. If no rule matches and no operator has set anything for the key, the error wraps
// api.ErrNoRule.
func (s *Service) Peek(ctx context.Context, key string) (api.KeyState, error) {
	return s.PeekValues(ctx, key, 0)
}

// PeekValues is Peek with up to n values of each field that the key's rules count.
func (s *Service) PeekValues(ctx context.Context, key string, n int) (api.KeyState, error) {
	plan, err := s.planOf(key)
	set := s.setFor(plan, key)
	if set != (api.SetByOperator{}) && errors.Is(err, api.ErrNoRule) {
		return api.KeyState{Key: key, Windows: []api.WindowState{}, SetByOperator: set}, nil
	}
	if err != nil {
		return api.KeyState{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.interactiveTimeout())
	defer cancel()
	st, err := s.config.Counter.Peek(ctx, plan, key)
	if err != nil {
		return api.KeyState{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	out := st.KeyState(plan, key)
	out.SetByOperator = set
	if n > 0 && plan.HasValues() {
		if out.Values, err = s.config.Counter.Values(ctx, plan, key, st.NowMs, n); err != nil {
			return api.KeyState{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
		}
	}
	return out, nil
}

// interactiveTimeout is the timeout of an answer that a person waits for. It is longer than that of a check, because no
// request waits for the answer, and Redis may have to compile a script first.
func (s *Service) interactiveTimeout() time.Duration { return 4 * s.config.Timeout }

// Reset forgets what a key has used and ends its levels; it reports whether there was anything to forget.
func (s *Service) Reset(ctx context.Context, key string) (bool, error) {
	plan, err := s.planOf(key)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.interactiveTimeout())
	defer cancel()
	had, err := s.config.Counter.Reset(ctx, plan, key)
	s.changed(key, reset)
	return had, unwritten(err)
}

// Throttled returns the first n decisions after one that a key is over a limit or blocked, ordered by their end and
// then by key, and the `after` of the next page; see counters.Redis.ThrottledPage.
func (s *Service) Throttled(ctx context.Context, n int, after string, keep func(api.Throttled) bool) ([]api.Throttled,
	string, error) {
	list, next, err := s.config.Counter.ThrottledPage(ctx, s.config.Rules(), n, after, keep)
	return list, next, unavailable(err)
}

// Overview returns which keys are throttled, which are near a limit, and what is reserved; see api.Overview.
func (s *Service) Overview(ctx context.Context, n int) (api.Overview, error) {
	out, err := s.config.Counter.Overview(ctx, s.config.Rules(), n)
	return out, unavailable(err)
}

// Outage returns the time since which on_error decides checks of this process because Redis does not answer, and how
// many checks each policy decided. The time is zero if Redis decides.
func (s *Service) Outage() (since time.Time, checks map[windows.OnError]int) { return s.outage.now() }

// probe reports to outage whether Redis answers. It gives back 0 units, because that is a write: a PING or a look can
// succeed while writes fail.
func (s *Service) probe(last counters.Request) {
	within, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
	defer cancel()
	_ = s.onShard(within, within, s.config.Counter.Shard(last.Key), func() error {
		_, _, err := s.config.Counter.Refund(within, last.Plan, last.Key, 0)
		return err
	})
}

// ValidateEvent reports whether a valid event has the values that its rule needs. Otherwise workers would make a dead
// letter of it.
func (s *Service) ValidateEvent(e api.Event) error {
	return s.config.Rules().CheckValues(e.Key, func(field string) string { return e.Values[field] })
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

// HasRule reports whether there is a rule with this name.
func (s *Service) HasRule(name string) bool {
	return slices.ContainsFunc(s.config.Rules().List(), func(r *windows.Rule) bool { return r.Name == name })
}
