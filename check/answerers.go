package check

import (
	"context"
	"time"
)

// answerer decides calls without a check in Redis. NewService makes the list of answerers. A call is passed to them
// in order, and the first one that can decide it does. If none can, the call goes to Redis. If Redis does not answer,
// on_error decides (resolve).
type answerer interface {
	// decide decides a call that arrived at that time, or returns false to pass it on. It may wait for Redis until the
	// deadline; a zero deadline forbids that.
	decide(ctx context.Context, c *call, arrived, deadline time.Time) (decision, bool)
	// changed is called for each key that this process has changed, or may have changed, and for each blocked key.
	changed(key string, how change)
}

// change says how a key was changed.
type change int

const (
	freed   change = iota // units came back: by a refund, or because a reservation was settled
	reset                 // its count or its limits changed: by a reset, or by an operator
	blocked               // it is not admitted, and a check of it has come
)

// answerWithoutRedis tries the answerers in order. It returns false if Redis must decide.
func (s *Service) answerWithoutRedis(ctx context.Context, c *call, arrived, deadline time.Time) (decision, bool) {
	for _, a := range s.answerers {
		if d, ok := a.decide(ctx, c, arrived, deadline); ok {
			return d, true
		}
	}
	return decision{}, false
}

// changed calls changed of all answerers.
func (s *Service) changed(key string, how change) {
	for _, a := range s.answerers {
		a.changed(key, how)
	}
}
