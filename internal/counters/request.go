package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Counter counts keys under rules, atomically. Redis is the shared counter
// (redis.go), Local is the counter of this process (local.go).
type Counter interface {
	// Check charges all requests if all are admitted. Otherwise it charges only the requests that are
	// charged even if denied. No two requests have the same key, and the costs are valid.
	Check(ctx context.Context, requests []Request) (Verdict, error)
	// Peek returns the state of a key.
	Peek(ctx context.Context, plan *windows.Plan, key string) (windows.KeyState, error)
	// Reset removes what a key has used, and reports whether there was anything.
	Reset(ctx context.Context, plan *windows.Plan, key string) (bool, error)
}

// Request is one key of a check.
type Request struct {
	Plan *windows.Plan
	Key  string
	Cost int64    // 0 charges nothing and requests whether one unit would be admitted
	Mode api.Mode // empty: api.ModeTake. All requests of a call are of api.ModeCharge, or none is
	// Reserves: the cost is reserved. If that is denied, nothing has happened yet, so nothing counts.
	Reserves bool
	// Replay, in the first request of a call, is where the answer to the whole call is remembered; nil: nowhere.
	Replay *Replay
	// Values is the result of Plan.Values for the request; empty if the plan counts none.
	Values []string
}

// ChargesDenied reports whether the cost counts even if the request is denied: because the
// rule that decides has on_deny: charge, or because of the mode.
func (r Request) ChargesDenied() bool {
	switch r.Mode {
	case api.ModeLook:
		return false
	case api.ModeCharge:
		return true
	}
	return !r.Reserves && r.Plan.Live != nil && r.Plan.Live.OnDeny == windows.OnDenyCharge
}

// Verdict is the answer to a check.
type Verdict struct {
	Allowed bool
	// Atomic: one step decided all requests.
	Atomic bool
	// Replayed: the call was answered before, under its Replay, and this is the same answer.
	Replayed bool
	// OtherBody: its Replay belongs to a call with another fingerprint. Nothing was decided.
	OtherBody bool
	Items     []windows.KeyState // in the order of the requests
	// Transitions is how many levels changed.
	Transitions int64
}

// Answered reports whether the call of this verdict was answered.
func (v Verdict) Answered() bool { return len(v.Items) > 0 }
