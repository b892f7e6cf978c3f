// Package gate is what the middleware of HTTP and gRPC have in common: the guard first, which costs no round trip,
// then the check, and the headers for the caller.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// Guard finds the decision that throttles a key; guard.Guard implements it.
type Guard interface {
	Lookup(key string) (api.Transition, bool)
}

// Checker decides and charges; client.Client implements it, with a policy for when nobody answers.
type Checker interface {
	Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error)
}

// Slots takes slots of in_flight windows; client.Client implements it. If Acquire returns nil without an error, the
// request passes without a slot.
type Slots interface {
	Acquire(ctx context.Context, key string, cost int64) (*client.Slot, error)
}

// Gate lets requests through or not.
type Gate struct {
	Guard   Guard   // nil: everybody is checked
	Checker Checker // nil: the guard alone decides
	Slots   Slots   // in place of Checker
	// RequireKey: a request without a key is refused (NoKey); else it passes.
	RequireKey bool
	// Now replaces the clock in tests, in ms since 1970; nil is the machine's.
	Now func() int64
}

// Outcome is the result for a request.
type Outcome int

// The outcomes.
const (
	Pass        Outcome = iota
	Over                // over the limit
	Unavailable         // nobody decided, or a policy denies because there is no answer
	NoKey               // it has no key, and one is required
	BadKey              // its key cannot be counted
	BadCost             // its cost is out of bounds
	AboveLimit          // its cost can never be admitted
	Refused             // the service asks for what its rule or its token does not allow, whoever its caller is
	Gone                // the caller left before there was an answer
)

// Verdict is an outcome and why.
type Verdict struct {
	Outcome Outcome
	Answer  api.CheckAnswer // has windows if somebody counted
	Err     error           // may be set together with Pass: see client.Client
	Slot    *client.Slot    // may be set together with Pass: the caller releases it
}

var errNoKey = fmt.Errorf("%w: the request has none", api.ErrBadKey)

// WithoutKey decides a request that has no key.
func (g Gate) WithoutKey() Verdict {
	if g.RequireKey {
		return Verdict{Outcome: NoKey, Err: errNoKey}
	}
	return Verdict{}
}

// Ask decides one request. With a cost below 1 only the guard is asked. With an empty key the request is refused.
func (g Gate) Ask(ctx context.Context, key string, cost int64) Verdict {
	if key == "" {
		return Verdict{Outcome: BadKey, Err: api.ValidateKey(key)}
	}
	if g.Guard != nil {
		if d, throttled := g.Guard.Lookup(key); throttled {
			return Verdict{Outcome: Over, Answer: g.answer(d, cost)}
		}
	}
	if g.Checker == nil && g.Slots == nil || cost < 1 {
		return Verdict{}
	}
	v := Verdict{}
	if g.Slots != nil {
		v = g.acquire(ctx, key, cost)
	} else {
		v.Answer, v.Err = g.Checker.Check(ctx, api.CheckRequest{Key: key, Cost: cost})
	}
	a, err := v.Answer, v.Err
	switch {
	case a.Allowed:
	case err == nil, a.Source == api.SourceLocal: // a local count can come with an error for the log
		v.Outcome = Over
	case ctx.Err() != nil:
		v.Outcome = Gone
	case errors.Is(err, api.ErrBadKey):
		v.Outcome = BadKey
	case errors.Is(err, api.ErrBadCount):
		v.Outcome = BadCost
	case errors.Is(err, api.ErrCostExceedsLimit):
		v.Outcome = AboveLimit
	case api.NameOf(err) != "" && !errors.Is(err, api.ErrUnavailable) && !errors.Is(err, api.ErrOutcomeUnknown),
		errors.Is(err, client.ErrCannotReserve):
		v.Outcome = Refused
	default:
		v.Outcome = Unavailable
	}
	return v
}

// acquire is a check whose charge is a slot. As in a check, a key without a rule passes.
func (g Gate) acquire(ctx context.Context, key string, cost int64) (v Verdict) {
	v.Slot, v.Err = g.Slots.Acquire(ctx, key, cost)
	var over *client.OverLimitError
	switch {
	case errors.As(v.Err, &over):
		v.Answer, v.Err = over.Answer, nil
	case errors.Is(v.Err, api.ErrNoRule):
		v.Answer.Allowed, v.Err = true, nil
	case v.Err == nil && v.Slot == nil:
		v.Answer.Allowed = true
	case v.Err == nil:
		v.Answer = v.Slot.Answer
		v.Answer.Allowed = true
	}
	return v
}

// answer converts a throttle decision to the denial of a check. The decision does not say when a cost above 1 is
// admitted, nor the end of each block.
func (g Gate) answer(d api.Transition, cost int64) api.CheckAnswer {
	now := time.Now().UnixMilli()
	if g.Now != nil {
		now = g.Now()
	}
	a := api.CheckAnswer{Rule: d.Rule, Key: d.Key, Cost: max(cost, 1), Source: api.SourceCache,
		Windows:      []api.WindowState{},
		RetryAfterMs: max(d.UntilMs-now, 1)} // if it is over, its release is on the way
	if d.IsBlock() {
		return blocked(a, d)
	}
	wait := time.Duration(a.RetryAfterMs) * time.Millisecond
	state := api.NewWindowState(d.Limit, time.Duration(d.WindowMs)*time.Millisecond, d.Used, wait, wait)
	if d.InFlight {
		state = state.As(api.WindowKind{InFlight: true})
	}
	a.Windows = append(a.Windows, state)
	return a
}

// OverText tells the caller of a request over its limit when it is admitted, if that is known.
func OverText(retryMs int64) string {
	if retryMs <= 0 {
		return "over the limit"
	}
	return fmt.Sprintf("over the limit; it is admitted again in %d ms", retryMs)
}

// Header returns the headers that the caller receives with the answer. They are empty if nobody counted.
func (v Verdict) Header() http.Header {
	h := http.Header{}
	headers.Set(h, []api.CheckAnswer{v.Answer}, v.Answer.RetryAfterMs)
	return h
}
