package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// keysLike lists the keys that match.
func keysLike(t testing.TB, c redis.UniversalClient, pattern string) []string {
	t.Helper()
	var list []string
	it := c.Scan(context.Background(), 0, pattern, 1000).Iterator()
	for it.Next(context.Background()) {
		list = append(list, it.Val())
	}
	testkit.Must(t, it.Err())
	return list
}

// hand is a clock that moves as a test tells it, and to the time that is waited for.
type hand struct {
	mu sync.Mutex
	at time.Time
}

func newHand() *hand { return &hand{at: time.Unix(1_700_000_000, 0)} }

func (h *hand) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = h.at.Add(d)
}

func (h *hand) clock() clock {
	return clock{
		now: func() time.Time {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.at
		},
		until: func(ctx context.Context, at time.Time) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			if at.After(h.at) {
				h.at = at
			}
			return ctx.Err() == nil
		},
	}
}
