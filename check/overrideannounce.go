package check

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/internal/overrides"
)

// announced is when the decision of a key that a pattern blocks was written. It is not known which keys match the
// pattern before checks ask for them.
type announced struct {
	override *overrides.Override
	at       time.Time
}

// Bounds of what is known to be announced. A key that is still asked for is announced again after announceAgain,
// because its decision may have been ended in the meantime.
const (
	maxAnnounced  = 10_000
	announceAgain = time.Minute
)

// announce writes the decision of a key that a pattern blocks, without blocking the caller. Two calls at the same
// moment may both write it, which does no harm.
func (s *Service) announce(key string, o *overrides.Override) {
	if !o.Blocks() || !o.OfPattern() {
		return
	}
	if last, ok := s.announced.Get(key); ok && last.override == o && time.Since(last.at) < announceAgain {
		return
	}
	s.announced.Add(key, announced{o, time.Now()})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		if s.writeDecisions(ctx, key) != nil {
			s.announced.Remove(key) // the next check tries again
		}
	}()
}
