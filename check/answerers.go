package check

import (
	"context"
	"time"
)

// answerer decides calls without a check in Redis. A call goes down the list of them (NewService), and the first that
// can decides. The rest goes to Redis. If Redis does not answer, on_error decides (resolve).
type answerer interface {
	// answer decides a call that came at `came`, or passes it on (false). It may wait for Redis until the
	// deadline; a zero deadline forbids that.
	answer(ctx context.Context, c *call, came, deadline time.Time) (decision, bool)
	// changed hears of each key that this process has changed, or may have changed.
	changed(key string, how change)
}

// change says how a key was changed.
type change int

const (
	freed change = iota // units came back: by a refund, or as a reservation was settled
	reset               // its count, or its limits: by a reset, or by what an operator sets
)

// answerFromMemory goes down the list; false where Redis is to decide.
func (s *Service) answerFromMemory(ctx context.Context, c *call, came, deadline time.Time) (decision, bool) {
	for _, a := range s.answerers {
		if d, ok := a.answer(ctx, c, came, deadline); ok {
			return d, true
		}
	}
	return decision{}, false
}

// changed tells all answerers.
func (s *Service) changed(key string, how change) {
	for _, a := range s.answerers {
		a.changed(key, how)
	}
}
