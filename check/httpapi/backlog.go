package httpapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// backlog remembers how far workers are behind. It measures this when it is read, at most once per backlogEvery.
type backlog struct {
	measure func(ctx context.Context) (map[int]eventlog.Backlog, error)

	mu   sync.Mutex
	at   time.Time
	last map[int]eventlog.Backlog // partition → its backlog at that time
}

const backlogEvery = time.Second

// read returns the backlog of each partition. A partition whose backlog cannot be read is left out: the
// append itself will return the error.
func (b *backlog) read(ctx context.Context) map[int]eventlog.Backlog {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.at) >= backlogEvery {
		b.at = now
		b.last, _ = b.measure(ctx)
	}
	return b.last
}

// admit refuses events of partitions in which workers are further behind than MaxBacklog. If it took them, they could
// be trimmed before a worker reads them.
func (s *Server) admit(ctx context.Context, events []api.Event) error {
	if s.config.MaxBacklog <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.BacklogTimeout)
	defer cancel()
	list := s.backlog.read(ctx)
	for _, e := range events {
		if p := s.config.Keys.Partition(e.Key); list[p].Oldest > s.config.MaxBacklog {
			return fmt.Errorf("%w: the oldest unread event of partition %d is %s old, events are refused above %s",
				api.ErrBacklog, p, list[p].Oldest.Round(time.Millisecond), s.config.MaxBacklog)
		}
	}
	return nil
}
