// Package reload owns values that are made from files and made again when the files change (rules, limits, tokens,
// certificates, extractors), and values that a server sends (Pushed). If a change cannot be used, the previous
// value stays.
package reload

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"
)

// Every is how often Run reads the files. It does not wait for events of the file system: the files are few and
// small, and reading works the same with an editor that renames, with a link that is swapped (a ConfigMap of
// Kubernetes), and with a network disk.
const Every = 250 * time.Millisecond

// Files is a value of type T that is made from the files at some paths.
type Files[T any] struct {
	value[T]
	list  func() ([]string, error) // returns the paths of the files
	parse func([]File) (T, error)  // nil: fixed
	seen  reading                  // the files at the last attempt, good or bad; under mu
}

// reading is the result of reading the files once.
type reading struct {
	files []File
	err   error
}

// Open makes the value for the first time. name names it in the log; parse gets the files in the order of paths.
// Nothing of the contents is logged except the error of parse. A nil log means that nothing is logged.
func Open[T any](name string, log *slog.Logger, parse func([]File) (T, error), paths ...string) (*Files[T], error) {
	return OpenList(name, log, parse, func() ([]string, error) { return paths, nil })
}

// OpenList is Open for a changing set of files, such as those of a directory: list returns their paths before each
// reading.
func OpenList[T any](name string, log *slog.Logger, parse func([]File) (T, error),
	list func() ([]string, error)) (*Files[T], error) {
	f := &Files[T]{value: newValue[T](name, log), list: list, parse: parse}
	if err := f.load(f.read()); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(f.seen.files, isPipe) {
		f.parse = nil // a pipe can be read only once, so the value is fixed
	}
	return f, nil
}

func isPipe(f File) bool {
	info, err := os.Stat(f.Path)
	return err == nil && !info.Mode().IsRegular()
}

// Fixed returns a value without files, which never changes.
func Fixed[T any](value T) *Files[T] {
	f := &Files[T]{}
	f.present.Store(&value)
	return f
}

// Reload makes the value again, whether the files changed or not. On an error, which it also logs, the present value
// stays. A fixed value is not changed.
func (f *Files[T]) Reload() error {
	if f.parse == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempt(f.read())
}

// Run reloads when the files have changed, until ctx ends.
func (f *Files[T]) Run(ctx context.Context) {
	if f.parse == nil {
		return
	}
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	var before reading
	for {
		select {
		case <-ticker.C:
			before = f.follow(before)
		case <-ctx.Done():
			return
		}
	}
}

// follow reads the files once. It reloads them if two conditions hold. They differ from those of the last attempt, so
// a bad file is reported once. And they are the same as in the reading before: otherwise, somebody may still be
// writing them.
func (f *Files[T]) follow(before reading) reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.read()
	if now.same(before) && !now.same(f.seen) {
		_ = f.attempt(now) // logged, and passed to the hooks
	}
	return now
}

func (f *Files[T]) read() reading {
	paths, err := f.list()
	if err != nil {
		return reading{err: fmt.Errorf("load %s: %w", f.name, err)}
	}
	first := f.present.Load() == nil // at the first time, a file may be a pipe
	files, err := readAll(f.name, first, paths)
	return reading{files, err}
}

// attempt tries the files that were read, logs the outcome and calls the hooks. The caller holds mu.
func (f *Files[T]) attempt(now reading) error {
	err := f.load(now)
	f.report(err, "files", len(now.files))
	return err
}

// load makes the present value from the files that were read, if they are good.
func (f *Files[T]) load(now reading) error {
	f.seen = now
	if now.err != nil {
		return now.err
	}
	value, err := f.parse(now.files)
	if err != nil {
		return err
	}
	f.present.Store(&value)
	return nil
}

func (l reading) same(other reading) bool {
	return fmt.Sprint(l.err) == fmt.Sprint(other.err) && slices.EqualFunc(l.files, other.files, func(a, b File) bool {
		return a.Path == b.Path && bytes.Equal(a.Data, b.Data)
	})
}
