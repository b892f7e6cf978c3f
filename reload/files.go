// Package reload owns values that are made of files and made anew when these
// change: tokens, certificates, extractors. A change that cannot be used keeps
// the value of before. (Rules have a watch of their own, windows.Source, which
// also tells the workers.)
package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often Run looks at the files. It reads them, rather than asking
// to be told of changes: they are few and small, and this sees the same of an
// editor that renames, of a link that is swapped, and of a network's disk.
const Every = time.Second

// MaxBytes is the largest file that is read.
const MaxBytes = 1 << 20

// Files is a value of type T made of the files at some paths.
type Files[T any] struct {
	name    string
	paths   []string
	parse   func(contents [][]byte) (T, error)
	log     *slog.Logger
	present atomic.Pointer[T]

	mu      sync.Mutex // one attempt at a time, the hook included
	seen    [][]byte   // the files at the last attempt, good or bad
	fault   string     // why they could not be read then
	outcome func(error)
}

// Open makes the value for the first time. name says in the log what it is;
// parse gets the files' contents in the order of paths. Nothing of a content is
// logged but what parse says in its error. A nil log means silence.
func Open[T any](name string, log *slog.Logger, parse func(contents [][]byte) (T, error), paths ...string) (*Files[T], error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Files[T]{name: name, paths: paths, parse: parse, log: log, outcome: func(error) {}}
	if err := f.load(f.read()); err != nil {
		return nil, err
	}
	return f, nil
}

// Value is the present one.
func (f *Files[T]) Value() T { return *f.present.Load() }

// OnReload sets what is called after each attempt to reload, with nil or the
// error. It may not call Reload.
func (f *Files[T]) OnReload(outcome func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcome = outcome
}

// Reload makes the value again, whether the files changed or not. On an error,
// which it also logs, the present value stays.
func (f *Files[T]) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempt(f.read())
}

// Run reloads at each tick at which the files have changed, until ctx ends.
func (f *Files[T]) Run(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-tick:
			f.ReloadIfChanged()
		case <-ctx.Done():
			return
		}
	}
}

// ReloadIfChanged does nothing for files like those of the last attempt, so a
// bad one is reported once.
func (f *Files[T]) ReloadIfChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	contents, err := f.read()
	if slices.EqualFunc(contents, f.seen, bytes.Equal) && reason(err) == f.fault {
		return
	}
	_ = f.attempt(contents, err) // logged, and told to the hook
}

// attempt tries what was read and tells of it. The caller holds mu.
func (f *Files[T]) attempt(contents [][]byte, err error) error {
	if err = f.load(contents, err); err != nil {
		f.log.Error(f.name+" not reloaded, keeping what was there", "paths", f.paths, "err", err)
	} else {
		f.log.Info(f.name+" reloaded", "paths", f.paths)
	}
	f.outcome(err)
	return err
}

func (f *Files[T]) load(contents [][]byte, err error) error {
	f.seen, f.fault = contents, reason(err)
	if err != nil {
		return err
	}
	value, err := f.parse(contents)
	if err != nil {
		return err
	}
	f.present.Store(&value)
	return nil
}

func (f *Files[T]) read() ([][]byte, error) {
	contents := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if contents[i], err = readBounded(path); err != nil {
			return nil, fmt.Errorf("load %s: %w", f.name, err)
		}
	}
	return contents, nil
}

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(content) > MaxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxBytes)
	}
	return content, nil
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
