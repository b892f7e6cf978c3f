package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Counter answers for keys under rules, atomically. Redis is the shared one
// (redis.go), Local this process's own (local.go).
type Counter interface {
	// Check charges all requests if all are admitted, else those that say so. Keys differ
	// from each other, and costs are valid.
	Check(ctx context.Context, requests []Request) (Verdict, error)
	// Peek gives where a key stands.
	Peek(ctx context.Context, plan *windows.Plan, key string) (windows.KeyState, error)
	// Reset forgets what a key has used, and says whether there was anything.
	Reset(ctx context.Context, plan *windows.Plan, key string) (bool, error)
}

// Request is one key of a check.
type Request struct {
	Plan *windows.Plan
	Key  string
	Cost int64    // 0 charges nothing and requests whether one unit would be admitted
	Mode api.Mode // empty: api.ModeTake. All requests of a call are of api.ModeCharge, or none is
	// Reserves: the cost is to be reserved. Where that is denied nothing has happened yet, so nothing counts.
	Reserves bool
	// Memory, in the first request of a call, is where the answer to the whole call is remembered; nil: nowhere.
	Memory *Memory
	// Values are what Plan.Values gives of the request; empty where the plan counts none.
	Values []string
}

// ChargesDenied says whether the cost counts where the request is denied: as the rule
// that decides has on_deny: charge, or by the mode.
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
	// Replayed: the call was answered before, under its Memory, and this is that answer.
	Replayed bool
	// OtherBody: its Memory is that of a call with another fingerprint. Nothing was decided.
	OtherBody bool
	Items     []windows.KeyState // in the order of the requests
	// Transitions is how many levels changed.
	Transitions int64
}

// Answered is false for the verdict of a call that was not answered.
func (v Verdict) Answered() bool { return len(v.Items) > 0 }
