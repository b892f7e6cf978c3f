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

// Source is where the present rules are asked for. Those of files change when
// these do (Run) or when told to (Reload); a file with an error changes nothing.
type Source struct {
	input   Input // its Read is nil where the rules are fixed
	log     *slog.Logger
	present atomic.Pointer[arrival]

	mu    sync.Mutex // one reload at a time, its hooks included
	seen  []byte     // the content at the last attempt, good or bad
	fault string     // why it could not be read then
	hooks []func(error)
}

// Input is where a Source has its rules from.
type Input struct {
	// Name is for logs and errors: a path.
	Name string
	// Watch are the directories in which a change is worth a look.
	Watch []string
	// Read gives all that the rules are made from, in one piece by which a change
	// is known, and how to make them from it.
	Read func() (content []byte, load func() (*Rules, any, error), err error)
}

type arrival struct {
	rules *Rules
	extra any
	at    time.Time
}

// NewSource loads the rules of the file at path. A nil log means silence.
func NewSource(path string, log *slog.Logger) (*Source, error) {
	return NewSourceFrom(Input{Name: path, Watch: []string{filepath.Dir(path)}, Read: func() ([]byte, func() (*Rules, any, error), error) {
		data, err := read(path)
		return data, func() (*Rules, any, error) {
			rules, err := Parse(path, data)
			return rules, nil, err
		}, err
	}}, log)
}

// NewSourceFrom loads the rules of an input. A nil log means silence.
func NewSourceFrom(in Input, log *slog.Logger) (*Source, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{input: in, log: log}
	if err := s.load(in.Read()); err != nil {
		return nil, err
	}
	return s, nil
}

// Fixed is a source of rules that never change.
func Fixed(r *Rules) *Source {
	s := &Source{}
	s.present.Store(&arrival{rules: r, at: time.Now()})
	return s
}

// Rules are the present ones.
func (s *Source) Rules() *Rules { return s.present.Load().rules }

// Extra is what the input made beside the present rules, nil if nothing.
func (s *Source) Extra() any { return s.present.Load().extra }

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
	if s.input.Read == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt(s.input.Read())
}

// Run watches the file and reloads it when its content changes, until ctx
// ends; then it returns nil. An error means that it cannot watch (any more).
func (s *Source) Run(ctx context.Context) error {
	if s.input.Read == nil {
		<-ctx.Done()
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch rules %s: %w", s.input.Name, err)
	}
	defer w.Close()
	// Directories, not files: editors rename a new file over the old one, and
	// Kubernetes swaps a link beside it (..data), which end a file's watch.
	for _, dir := range s.input.Watch {
		if err := w.Add(dir); err != nil {
			return fmt.Errorf("watch rules %s: %w", s.input.Name, err)
		}
	}
	s.reloadIfChanged() // what changed before the watch began
	return s.follow(ctx, w.Events, w.Errors, func() {
		for _, dir := range s.input.Watch {
			if err := w.Add(dir); err != nil {
				s.log.Warn("cannot watch the rules, looking at intervals", "dir", dir, "every", recheck, "err", err)
			}
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
				return fmt.Errorf("watch rules %s: %w", s.input.Name, fsnotify.ErrClosed)
			}
			changed()
		case err, ok := <-errs:
			if !ok {
				return fmt.Errorf("watch rules %s: %w", s.input.Name, fsnotify.ErrClosed)
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				s.log.Warn("watching the rules", "path", s.input.Name, "err", err)
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
	content, load, err := s.input.Read()
	if bytes.Equal(content, s.seen) && reason(err) == s.fault {
		return
	}
	_ = s.attempt(content, load, err) // logged, and told to the hooks
}

// attempt tries what was read and tells of it. The caller holds mu.
func (s *Source) attempt(content []byte, load func() (*Rules, any, error), err error) error {
	err = s.load(content, load, err)
	if err != nil {
		s.log.Error("rules not reloaded, keeping those of before", "path", s.input.Name, "err", err)
	} else {
		s.log.Info("rules reloaded", "path", s.input.Name, "rules", len(s.Rules().List()))
	}
	for _, hook := range s.hooks {
		hook(err)
	}
	return err
}

// load takes what was read for the present rules, if it is good.
func (s *Source) load(content []byte, load func() (*Rules, any, error), err error) error {
	s.seen, s.fault = content, reason(err)
	if err != nil {
		return err
	}
	rules, extra, err := load()
	if err != nil {
		return err
	}
	s.present.Store(&arrival{rules, extra, time.Now()})
	return nil
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
