package windows

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Counter answers for keys under rules, atomically. Redis is the shared one
// (redis.go), Local this process's own (local.go).
type Counter interface {
	// Check charges all asks if all are admitted, else none. Keys differ from
	// each other; costs are valid and within their rule's limits.
	Check(ctx context.Context, asks []Ask) (Verdict, error)
	// Peek gives where a key stands.
	Peek(ctx context.Context, rule *Rule, key string) (Standing, error)
	// Reset forgets what a key has spent, and says whether there was anything.
	Reset(ctx context.Context, rule *Rule, key string) (bool, error)
}

// Ask is one key of a check.
type Ask struct {
	Rule *Rule
	Key  string
	Cost int64 // 0 charges nothing and asks whether one unit would be admitted
}

// Verdict is the answer to a check.
type Verdict struct {
	Allowed bool
	// Atomic: one step decided all asks.
	Atomic bool
	Items  []Standing // in the order of the asks
	// Transitions is how many levels changed.
	Transitions int64
}

// Standing is where a key stands, after a check or as peeked.
type Standing struct {
	NowMs int64
	// RetryAfter is how long until the cost would be admitted; 0 where it is, and
	// below 0 where it never can be (a cost above the limit of a shadow rule).
	RetryAfter time.Duration
	Windows    []Use
}

// Use is where a key stands in one window.
type Use struct {
	Used int64
	// More is how long until the first units come back, Reset until all have; 0
	// where none are used.
	More, Reset time.Duration
}

// WindowStates words a standing for the wire.
func (s Standing) WindowStates(r *Rule) []api.WindowState {
	out := make([]api.WindowState, len(r.Windows))
	for i, w := range r.Windows {
		u := s.Windows[i]
		out[i] = api.WindowState{
			Limit: w.Limit, WindowMs: w.Per.Milliseconds(), Used: u.Used, Remaining: max(0, w.Limit-u.Used),
			ResetMs: u.Reset.Milliseconds(), MoreMs: u.More.Milliseconds(),
		}
	}
	return out
}
