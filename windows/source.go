package windows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// A burst of changes is over when nothing came for settle, and is not waited
	// for longer than patience: a directory may never be quiet.
	settle   = 100 * time.Millisecond
	patience = time.Second
	// recheck finds what no event tells of: network file systems, a directory
	// that was replaced, a link whose target lies elsewhere.
	recheck = time.Minute
)

// Source is where the present rules are asked for. Those of a file change when
// it does (Run) or when told to (Reload); a file with an error changes nothing.
type Source struct {
	path    string // empty: the rules are fixed
	log     *slog.Logger
	present atomic.Pointer[arrival]

	mu    sync.Mutex // one reload at a time, its hooks included
	seen  []byte     // the file at the last attempt, good or bad
	fault string     // why it could not be read then
	hooks []func(error)
}

type arrival struct {
	rules *Rules
	at    time.Time
}

// NewSource loads the rules of the file at path. A nil log means silence.
func NewSource(path string, log *slog.Logger) (*Source, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{path: path, log: log}
	if err := s.load(read(s.path)); err != nil {
		return nil, err
	}
	return s, nil
}

// Fixed is a source of rules that never change.
func Fixed(r *Rules) *Source {
	s := &Source{}
	s.present.Store(&arrival{r, time.Now()})
	return s
}

// Rules are the present ones.
func (s *Source) Rules() *Rules { return s.present.Load().rules }

// LoadedAt is when the present rules came in.
func (s *Source) LoadedAt() time.Time { return s.present.Load().at }

// OnReload adds a function to call after each attempt to reload, with nil or
// the error. Calls come one at a time; none may call Reload or OnReload.
func (s *Source) OnReload(hook func(err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, hook)
}

// Reload loads the file again, changed or not. On an error, which it also
// logs, the present rules stay. Fixed rules have nothing to reload.
func (s *Source) Reload() error {
	if s.path == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt(read(s.path))
}

// Run watches the file and reloads it when its content changes, until ctx
// ends; then it returns nil. An error means that it cannot watch (any more).
func (s *Source) Run(ctx context.Context) error {
	if s.path == "" {
		<-ctx.Done()
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch rules %s: %w", s.path, err)
	}
	defer w.Close()
	// The directory, not the file: editors rename a new file over the old one,
	// and Kubernetes swaps a link beside it (..data), which end a file's watch.
	dir := filepath.Dir(s.path)
	if err := w.Add(dir); err != nil {
		return fmt.Errorf("watch rules %s: %w", s.path, err)
	}
	s.reloadIfChanged() // what changed before the watch began
	return s.follow(ctx, w.Events, w.Errors, func() {
		if err := w.Add(dir); err != nil {
			s.log.Warn("cannot watch the rules, looking at intervals", "dir", dir, "every", recheck, "err", err)
		}
	})
}

// follow turns events into looks at the file. Which file an event names does
// not matter, as a chain of links may lead to ours: a look costs one read.
func (s *Source) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, rewatch func()) error {
	var due <-chan time.Time // nil: nothing happened
	var since time.Time
	changed := func() {
		if due == nil {
			since = time.Now()
		}
		due = time.After(min(settle, patience-time.Since(since)))
	}
	again := time.NewTicker(recheck)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if !ok {
				return fmt.Errorf("watch rules %s: %w", s.path, fsnotify.ErrClosed)
			}
			changed()
		case err, ok := <-errs:
			if !ok {
				return fmt.Errorf("watch rules %s: %w", s.path, fsnotify.ErrClosed)
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				s.log.Warn("watching the rules", "path", s.path, "err", err)
			}
			changed() // events may be missing
		case <-due:
			due = nil
			s.reloadIfChanged()
		case <-again.C:
			rewatch()
			s.reloadIfChanged()
		}
	}
}

// reloadIfChanged does nothing for a file like that of the last attempt, so a
// bad one is reported once.
func (s *Source) reloadIfChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := read(s.path)
	if bytes.Equal(data, s.seen) && reason(err) == s.fault {
		return
	}
	_ = s.attempt(data, err) // logged, and told to the hooks
}

// attempt tries what was read and tells of it. The caller holds mu.
func (s *Source) attempt(data []byte, err error) error {
	err = s.load(data, err)
	if err != nil {
		s.log.Error("rules not reloaded, keeping those of before", "path", s.path, "err", err)
	} else {
		s.log.Info("rules reloaded", "path", s.path, "rules", len(s.Rules().List()))
	}
	for _, hook := range s.hooks {
		hook(err)
	}
	return err
}

// load takes what was read for the present rules, if it is good.
func (s *Source) load(data []byte, err error) error {
	s.seen, s.fault = data, reason(err)
	if err != nil {
		return err
	}
	rules, err := Parse(s.path, data)
	if err != nil {
		return err
	}
	s.present.Store(&arrival{rules, time.Now()})
	return nil
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
