package sinks

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// resendStep is how many alerts one request to Alertmanager contains at most.
const resendStep = 500

// active holds the alerts that are active in an Alertmanager. Alertmanager ends an alert that is not sent to it
// again.
type active struct {
	*runner
	// posting is locked for writing while alerts are sent again, so that none is sent after it has cleared.
	posting sync.RWMutex
	mu      sync.Mutex
	list    map[string]api.Transition // identity → as it was raised
	gapMs   int64                     // when lost alerts were last detected; 0: never in this process
}

// load reads the alerts that were active when this process, or the one before it, last delivered. Alerts that the
// file no longer sends to this sink are removed, because their clearing would not be sent either.
func (s *active) load(ctx context.Context, l *lock) error {
	list, err := s.state.activeAlerts(ctx)
	if err != nil {
		return err
	}
	for id, t := range list {
		if s.sink.takes(t) {
			continue
		}
		t.State = api.StateCleared
		if err := s.state.note(ctx, l, t); err != nil {
			return err
		}
		delete(list, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = list
	return nil
}

// deliver sends an alert and records that it is active, or has cleared.
func (s *active) deliver(ctx context.Context, l *lock, t api.Transition) error {
	s.posting.RLock()
	defer s.posting.RUnlock()
	id := identity(t)
	s.mu.Lock()
	raised, known := s.list[id]
	s.mu.Unlock()
	var since time.Time
	if known && t.State == api.StateCleared {
		since = time.UnixMilli(raised.SinceMs)
	}
	if err := s.sink.deliver(ctx, s.config.Prefix, t, since); err != nil {
		return err
	}
	s.mu.Lock()
	if t.ExpiresMs < s.gapMs { // it waited here meanwhile, so it is handled like the alerts in missed
		t.State = api.StateCleared
	}
	s.mu.Unlock()
	return s.record(ctx, l, t)
}

// record stores that an alert is active, or has cleared.
func (s *active) record(ctx context.Context, l *lock, t api.Transition) error {
	if err := s.state.note(ctx, l, t); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.State == api.StateCleared {
		delete(s.list, identity(t))
	} else {
		s.list[identity(t)] = t
	}
	return nil
}

// missed removes the alerts that were to expire before now: one of the lost alerts may have cleared them.
func (s *active) missed(ctx context.Context, l *lock) {
	var over []api.Transition
	s.mu.Lock()
	s.gapMs = time.Now().UnixMilli()
	for _, t := range s.list {
		if t.ExpiresMs < s.gapMs {
			over = append(over, t)
		}
	}
	s.mu.Unlock()
	for _, t := range over {
		t.State = api.StateCleared
		for ctx.Err() == nil {
			err := s.record(ctx, l, t)
			if err == nil {
				break
			}
			s.log.Warn("forgetting an active alert failed, trying again", "id", t.ID, "error", err)
			pause.For(ctx, time.Second)
		}
	}
}

// resend sends the active alerts four times per ResolveAfter, until ctx ends.
func (s *active) resend(ctx context.Context) {
	for {
		s.mu.Lock()
		ids := slices.Collect(maps.Keys(s.list))
		s.mu.Unlock()
		for step := range slices.Chunk(ids, resendStep) {
			if err := s.post(ctx, step); err != nil && ctx.Err() == nil {
				s.log.Warn("sending active alerts again failed", "alerts", len(step), "error", err)
				break
			}
		}
		if !pause.For(ctx, s.sink.ResolveAfter/4) {
			return
		}
	}
}

// post sends those of these alerts that are still active.
func (s *active) post(ctx context.Context, ids []string) error {
	s.posting.Lock()
	defer s.posting.Unlock()
	var list []amAlert
	s.mu.Lock()
	for _, id := range ids {
		if t, ok := s.list[id]; ok {
			list = append(list, s.sink.amAlert(s.config.Prefix, t, s.sink.text.of(t), time.Time{}, time.Now()))
		}
	}
	s.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	return s.sink.postAlerts(ctx, list)
}
