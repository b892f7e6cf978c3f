package check

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/internal/overrides"
)

// announcer writes the decisions of keys that the pattern of a block denies. It is not known which keys match the
// pattern before checks ask for them.
type announcer struct {
	mu    sync.Mutex
	known *simplelru.LRU[string, announced]
}

type announced struct {
	override *overrides.Override
	at       time.Time
}

// announceAgain is the time after which a key that is still asked for is announced again: its decision may have been
// ended in the meantime.
const announceAgain = time.Minute

func newAnnouncer() *announcer {
	a := &announcer{}
	a.known, _ = simplelru.NewLRU[string, announced](10_000, nil) // the error is for a size below 1
	return a
}

// takes reports whether a key must be announced now.
func (a *announcer) takes(key string, o *overrides.Override) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, ok := a.known.Get(key); ok && last.override == o && time.Since(last.at) < announceAgain {
		return false
	}
	a.known.Add(key, announced{o, time.Now()})
	return true
}

// announce writes the decision of a key that a pattern blocks, without blocking the caller.
func (s *Service) announce(key string, o *overrides.Override) {
	if !o.Blocks() || !o.OfPattern() || !s.announcer.takes(key, o) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		if s.restate(ctx, key) != nil {
			s.announcer.mu.Lock()
			defer s.announcer.mu.Unlock()
			s.announcer.known.Remove(key) // the next check tries again
		}
	}()
}
