package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	// sony/gobreaker, as in package check: small, widely used, no state of its own to keep.
	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Config of a Client: zero values are defaults.
type Config struct {
	// HTTP is for the transport that Dial opens. New does not read it: there the transport is the caller's.
	HTTP HTTPConfig
	// Timeout is how long one call may take, all its attempts together, before the policy decides; default 500ms. It
	// must be longer than the server's --check-timeout (default 250ms), so that the rule's on_error decides if Redis
	// does not answer. A context that ends earlier ends the call with its own error. Then no policy answers, because
	// the caller is gone.
	Timeout time.Duration
	// Retries is how often a call is sent again if it certainly charged nothing, or carries an idempotency key;
	// default 2, below 0 never.
	Retries int
	// NoIdempotency turns off the idempotency key that each check carries. With a key, a check is sent again even if
	// its answer was lost, and is charged once. A key costs the server's Redis about as much as the check, and some
	// 250 B for a minute (docs/client.md). Over HTTP and gRPC, a key keeps the server from answering a check from its
	// own leases and remembered denials. For hot keys set this, or Leases and Denials. (direct.Redis answers first
	// attempts from memory.) A key that the caller put into the context (api.WithIdempotency) is kept in either case.
	NoIdempotency bool
	// Policy decides if nobody answers; default Allow.
	Policy Policy
	// RulePolicies: name of a rule → the policy for its keys, instead of Policy.
	RulePolicies map[string]Policy
	// Instances is how many processes share the limits while each of them counts alone (Local); default 1. Each gets
	// the limit divided by this, rounded down, at least 1 unit.
	Instances int
	// RuleOf returns the rule of a key, and false if it does not know it. If RuleOf is nil, does not know the key, or
	// returns no valid limits, the rule from earlier answers is used.
	RuleOf func(key string) (Rule, bool)
	// UnknownKeys is the policy if Local must decide a key whose rule is not known; Allow (the default) or Deny.
	UnknownKeys Policy
	// UnmatchedKeys is the policy for a key that no rule of the server matches, shadow rules included: Allow
	// (the default: such a key has no limit) or Deny (RetryAfterMs is below 0).
	UnmatchedKeys Policy
	// MaxWait is how long Wait may take; default 0: until its context ends.
	MaxWait time.Duration
	// Releases wakes Wait when the key is released earlier than the last answer said; guard.Guard is one. Nil: Wait
	// asks again when that time has passed.
	Releases Releases
	// KnownKeys is how many keys are remembered with their rule. LocalKeys is how many keys Local counts, each under
	// its rule. If there are more, the ones that were asked for longest ago are forgotten (for LocalKeys, nearly so).
	// Default 100,000 each.
	KnownKeys, LocalKeys int
	// Denials is how many denied keys are remembered. A call that has no other keys is denied without the server for
	// up to 10ms. If there are more, the ones that were asked for longest ago are forgotten. Default 0: none.
	Denials int
	// Leases is how many hot keys the client leases at most: it spends their units without a call. It needs a Leaser
	// (client.HTTP) and a rule with lease. Close gives unspent units back. Default 0: none.
	Leases int
	// OnFallback is called with the reason each time that a policy decides, on the caller's
	// goroutine. For metrics and logs; may be nil.
	OnFallback func(p Policy, why error)
	// Now replaces the clock of Local and Leases in tests; it returns ms since 1970.
	Now func() int64
}

// Client calls a Checker within a deadline and behind a circuit breaker, and has a policy for when nobody answers. It
// is a Checker itself, and a Reserver if its Checker is one. Safe for use by many goroutines.
//
// The Source of an answer of a policy is policy or local. Its error is nil, except under Deny and if the server
// refused our credentials.
type Client struct {
	*shared
	policy Policy // 0: that of the rule, or the default
}

type shared struct {
	checker Checker
	config  Config
	breaker *gobreaker.CircuitBreaker[struct{}]
	known   *known
	local   *inprocess.Counter
	denials *denials // nil: none are remembered
	leases  *leases  // nil: there are none
	waiting *queues
	close   func() // nil: the caller closes the Checker
}

const (
	defaultTimeout = 500 * time.Millisecond
	defaultKeys    = 100_000
	// openFor is how long no call is sent after tripAfter failures in a row; then one call tries. It bounds how late
	// the client notices that a server is back.
	openFor   = 500 * time.Millisecond
	tripAfter = 5
	// firstPause is before the first retry; each next one waits twice as long.
	firstPause = 5 * time.Millisecond
	// rememberFor is how long the server must remember our keys: longer than a request of a call that has ended can
	// be on its way.
	rememberFor = time.Minute
)

// errCallerGone means that the caller's own context ended the call. It says nothing about the server, so it does not
// open the breaker. Otherwise a caller that can choose a deadline, such as a gRPC client, could make the policy
// answer everybody.
var errCallerGone = errors.New("the caller is gone")

// New makes a Client of a Checker. The caller closes the Checker.
func New(checker Checker, c Config) (*Client, error) {
	if err := c.validate(checker); err != nil {
		return nil, err
	}
	s := &shared{
		checker: checker, config: c, known: newKnown(c.KnownKeys, c.RuleOf),
		local: inprocess.New(c.LocalKeys, c.Now), denials: newDenials(c.Denials),
		waiting: &queues{keys: map[string]*queue{}},
		breaker: gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
			Name: "streamcounter", Timeout: openFor,
			ReadyToTrip:  func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= tripAfter },
			IsSuccessful: func(err error) bool { return !failed(err) },
			IsExcluded:   func(err error) bool { return errors.Is(err, errCallerGone) },
		}),
	}
	if err := s.useLeases(); err != nil {
		return nil, err
	}
	return &Client{shared: s}, nil
}

func (c *Config) validate(checker Checker) error {
	if checker == nil {
		return errors.New("client: a Checker is required")
	}
	c.Timeout, c.Retries, c.Instances = cmp.Or(c.Timeout, defaultTimeout), cmp.Or(c.Retries, 2), cmp.Or(c.Instances, 1)
	c.KnownKeys, c.LocalKeys = cmp.Or(c.KnownKeys, defaultKeys), cmp.Or(c.LocalKeys, defaultKeys)
	c.Policy = cmp.Or(c.Policy, Allow)
	c.UnknownKeys, c.UnmatchedKeys = cmp.Or(c.UnknownKeys, Allow), cmp.Or(c.UnmatchedKeys, Allow)
	switch {
	case c.Timeout < 0:
		return fmt.Errorf("client: Timeout %s: expected more than 0", c.Timeout)
	case c.Instances < 1:
		return fmt.Errorf("client: Instances %d: expected at least 1", c.Instances)
	case c.KnownKeys < 1 || c.LocalKeys < 1:
		return fmt.Errorf("client: KnownKeys %d, LocalKeys %d: expected at least 1 each", c.KnownKeys, c.LocalKeys)
	case c.Denials < 0 || c.Leases < 0:
		return fmt.Errorf("client: Denials %d, Leases %d: expected 0 or more each", c.Denials, c.Leases)
	case !c.Policy.valid():
		return fmt.Errorf("client: Policy %d: expected Allow, Deny or Local", c.Policy)
	case c.MaxWait < 0:
		return fmt.Errorf("client: MaxWait %s: expected 0 or more", c.MaxWait)
	case c.UnknownKeys != Allow && c.UnknownKeys != Deny:
		return fmt.Errorf("client: UnknownKeys %d: expected Allow or Deny", c.UnknownKeys)
	case c.UnmatchedKeys != Allow && c.UnmatchedKeys != Deny:
		return fmt.Errorf("client: UnmatchedKeys %d: expected Allow or Deny", c.UnmatchedKeys)
	}
	for rule, p := range c.RulePolicies {
		if !p.valid() {
			return fmt.Errorf("client: RulePolicies[%q] %d: expected Allow, Deny or Local", rule, p)
		}
	}
	return nil
}

// Close gives leased units back (Config.Leases), and closes the idle connections that Dial has opened. It does not
// close the Checker of New.
func (c *Client) Close() {
	if c.leases != nil {
		c.leases.Close()
	}
	if c.close != nil {
		c.close()
	}
}

// With returns the same client, with all that it remembers, but with another policy for the calls made through it,
// whatever the rule.
func (c *Client) With(p Policy) *Client {
	if !p.valid() {
		p = 0
	}
	return &Client{c.shared, p}
}

// Check implements Checker.
func (c *Client) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	if a, ok := c.leases.answer(ctx, &req); ok {
		return a, nil
	}
	one := []api.CheckRequest{req}
	all, err := c.checkAll(ctx, one, func(ctx context.Context) (api.ChecksAnswer, error) {
		a, err := c.checker.Check(ctx, req)
		if err == nil {
			c.leases.asked(&a)
		}
		return api.ChecksAnswer{Checks: []api.CheckAnswer{a}}, err
	})
	return first(all), err
}

// first returns the answer to the only check of a call, or none beside an error.
func first(all api.ChecksAnswer) (a api.CheckAnswer) {
	if len(all.Checks) == 1 {
		a = all.Checks[0]
	}
	return a
}

// CheckAll implements Checker. If policies differ, the strictest decides for all: Deny, then Local, then Allow.
func (c *Client) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	return c.checkAll(ctx, reqs, func(ctx context.Context) (api.ChecksAnswer, error) {
		return c.checker.CheckAll(ctx, reqs)
	})
}

func (c *Client) checkAll(ctx context.Context, reqs []api.CheckRequest,
	call func(context.Context) (api.ChecksAnswer, error)) (api.ChecksAnswer, error) {
	if all, ok := c.denials.answer(ctx, reqs); ok {
		return all, nil
	}
	asked := c.denials.start()
	all, err := ask(ctx, c.shared, call)
	if err != nil {
		return c.fallback(ctx, reqs, err)
	}
	for i, a := range all.Checks {
		c.known.update(a)
		c.denials.charged(reqs[i].Mode, a)
	}
	if len(all.Checks) == 1 { // in a call of several, the costs of a key were added up
		c.denials.remember(reqs[0].Mode, all.Checks[0], asked)
	}
	return c.refuseAllUnmatched(all, reqs), nil
}

// CheckEach implements Checker.
func (c *Client) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	return transport.EachUnknown(reqs, func(i int, _ *api.CheckRequest) (api.Each, bool) {
		all, known := c.denials.answer(ctx, reqs[i:i+1])
		return api.Each{CheckAnswer: first(all)}, known
	}, func(unknown []api.CheckRequest) ([]api.Each, error) { return c.askEach(ctx, unknown) })
}

func (c *Client) askEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	asked := c.denials.start()
	var before []api.Each // of the attempt before
	list, err := ask(ctx, c.shared, func(ctx context.Context) ([]api.Each, error) {
		list, err := c.checker.CheckEach(ctx, reqs)
		if failed(err) {
			list = slices.Repeat([]api.Each{{Err: err}}, len(reqs))
		} else if err != nil {
			return nil, err
		}
		for i := range min(len(before), len(list)) {
			if failed(list[i].Err) && !failed(before[i].Err) {
				list[i] = before[i]
			}
			list[i].Err = errorAfter(before[i].Err, list[i].Err)
		}
		before = list
		return list, commonError(ctx, list)
	})
	if len(list) != len(reqs) {
		if err != nil && !unanswered(err) {
			return nil, err
		}
		list = slices.Repeat([]api.Each{{Err: err}}, len(reqs))
	}
	for i := range list {
		if list[i].Err == nil {
			c.known.update(list[i].CheckAnswer)
			c.denials.remember(reqs[i].Mode, list[i].CheckAnswer, asked)
			list[i].CheckAnswer = c.refuseUnmatched(list[i].CheckAnswer)
			continue
		}
		var all api.ChecksAnswer
		all, list[i].Err = c.fallback(ctx, reqs[i:i+1], list[i].Err)
		list[i].CheckAnswer = first(all)
	}
	for i, e := range list { // after all denials: checks that are sent one by one are decided in any order
		c.denials.charged(reqs[i].Mode, e.CheckAnswer)
	}
	return list, nil
}

// Peek implements Checker. No policy answers it.
func (c *Client) Peek(ctx context.Context, key string) (api.KeyState, error) {
	if err := api.ValidateKey(key); err != nil { // an open breaker acts before the transport validates
		return api.KeyState{}, err
	}
	return send(ctx, c.shared, false, func(ctx context.Context) (api.KeyState, error) {
		return c.checker.Peek(ctx, key)
	})
}

func unknown(e api.Each) bool { return errors.Is(e.Err, api.ErrOutcomeUnknown) }

// commonError returns one error for all checks of an attempt. The breaker counts it, and it decides whether there is
// another attempt. Checks that are sent one by one have only errors of their own.
func commonError(ctx context.Context, list []api.Each) error {
	all := allFailed(list)
	if at := slices.IndexFunc(list, unknown); at >= 0 && (all || api.Repeatable(ctx)) {
		return list[at].Err // with a key all are sent again, and those that were answered charge nothing
	}
	if all {
		return list[0].Err
	}
	return nil
}

func allFailed(list []api.Each) bool {
	for _, e := range list {
		if !failed(e.Err) {
			return false
		}
	}
	return len(list) > 0
}

// ask calls within the deadline and behind the breaker. It calls again if the call certainly charged nothing, or
// carries an idempotency key.
func ask[T any](caller context.Context, s *shared, call func(context.Context) (T, error)) (answer T, err error) {
	ctx, repeatable := s.repeatable(caller)
	return send(ctx, s, repeatable, call)
}

func send[T any](caller context.Context, s *shared, repeatable bool,
	call func(context.Context) (T, error)) (answer T, err error) {
	ctx, cancel := context.WithTimeout(caller, s.config.Timeout)
	defer cancel()
	_, err = s.breaker.Execute(func() (struct{}, error) {
		for attempt := 0; ; attempt++ {
			before := err
			answer, err = call(ctx)
			err = errorAfter(before, err)
			if gone := pause.Gone(caller); err != nil && gone != nil {
				return struct{}{}, fmt.Errorf("%w: %w: %w", errCallerGone, gone, err)
			}
			again := errors.Is(err, api.ErrNotSent) || repeatable && errors.Is(err, api.ErrOutcomeUnknown)
			if !again || attempt >= s.config.Retries ||
				!pause.BeforeDeadline(ctx, firstPause<<attempt) {
				return struct{}{}, err
			}
			ctx = api.Again(ctx)
		}
	})
	if isBreaker(err) {
		if err = transport.NotSent(err); pause.Gone(caller) != nil {
			err = fmt.Errorf("%w: %w", pause.Gone(caller), err)
		}
	}
	return answer, err
}

// errorAfter returns the error of a call whose last attempts ended with the errors before and err. If the one before
// may have charged, and the last one was not sent, the call may have charged.
func errorAfter(before, err error) error {
	if errors.Is(before, api.ErrOutcomeUnknown) && errors.Is(err, api.ErrNotSent) {
		return before
	}
	return err
}
