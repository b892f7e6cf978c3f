// Package gate is what the middleware of HTTP and gRPC have in common: the guard
// first, which costs no round trip, then the check, and what to tell the caller.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// Guard knows who is throttled; client.Guard does.
type Guard interface {
	Lookup(key string) (api.Transition, bool)
}

// Checker decides and charges; client.Client does, with a policy for when nobody answers.
type Checker interface {
	Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error)
}

// Slots gives slots of in_flight windows; client.Client does. Nil without an error lets
// the request through without one.
type Slots interface {
	Acquire(ctx context.Context, key string, cost int64) (*client.Slot, error)
}

// Gate lets requests through or not.
type Gate struct {
	Guard   Guard   // nil: everybody is checked
	Checker Checker // nil: the guard alone decides
	Slots   Slots   // in the place of Checker
	// RequireKey makes a request without a key Invalid; else it passes.
	RequireKey bool
	// Now stands in for the clock in tests, in ms since 1970; nil is the machine's.
	Now func() int64
}

// Outcome is what becomes of a request.
type Outcome int

// The outcomes.
const (
	Pass        Outcome = iota
	Over                // over the limit
	Unavailable         // nobody decided, or a policy denies for want of an answer
	Invalid             // it can never be admitted: its key or cost is wrong
	Gone                // the caller left before there was an answer
)

// Verdict is an outcome and why.
type Verdict struct {
	Outcome Outcome
	Answer  api.CheckAnswer // has windows where somebody counted
	Err     error           // may be there beside Pass: see client.Client
	Slot    *client.Slot    // held beside Pass, where it is not nil: the caller releases it
}

// ErrNoKey is the error of a request without a key where one is required.
var ErrNoKey = fmt.Errorf("%w: the request has none", api.ErrBadKey)

// WithoutKey decides a request that has no key.
func (g Gate) WithoutKey() Verdict {
	if g.RequireKey {
		return Verdict{Outcome: Invalid, Err: ErrNoKey}
	}
	return Verdict{}
}

// Ask decides one request. With a cost below 1 only the guard is asked.
func (g Gate) Ask(ctx context.Context, key string, cost int64) Verdict {
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
	case err == nil:
		v.Outcome = Over
	case ctx.Err() != nil:
		v.Outcome = Gone
	case errors.Is(err, api.ErrBadKey), errors.Is(err, api.ErrBadCount), errors.Is(err, api.ErrCostExceedsLimit):
		v.Outcome = Invalid
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

// answer words a throttle decision as the denial of a check.
func (g Gate) answer(d api.Transition, cost int64) api.CheckAnswer {
	now := time.Now().UnixMilli()
	if g.Now != nil {
		now = g.Now()
	}
	ms := max(d.UntilMs-now, 1) // it is over, and its end is on the way
	wait := time.Duration(ms) * time.Millisecond
	state := api.NewWindowState(d.Limit, time.Duration(d.WindowMs)*time.Millisecond, d.Used, wait, wait)
	if d.InFlight {
		state = state.As(api.WindowKind{InFlight: true})
	}
	return api.CheckAnswer{
		Rule: d.Rule, Key: d.Key, Cost: max(cost, 1), RetryAfterMs: ms, Source: api.SourceRedis,
		Windows: []api.WindowState{state},
	}
}

// Header is what the caller receives beside the answer, nothing where nobody counted.
func (v Verdict) Header() http.Header {
	h := http.Header{}
	headers.Set(h, []api.CheckAnswer{v.Answer}, v.Answer.RetryAfterMs)
	return h
}

// Address is the part of an address that stands for one caller: an IPv4 address, or the
// /64 of an IPv6 one, as whoever has one address of it has them all.
func Address(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(64)
	if err != nil {
		return ""
	}
	return p.String()
}
