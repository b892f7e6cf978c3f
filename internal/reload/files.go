// Package reload owns values that are made of files and made again when these
// change: rules, limits, tokens, certificates, extractors; and those that a server
// sends (pushed.go). A change that cannot be used keeps the value of before.
package reload

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Every is how often Run looks at the files. It reads them, rather than waiting
// for events of the file system: they are few and small, and this sees the same of
// an editor that renames, of a link that is swapped (a ConfigMap of Kubernetes),
// and of a network's disk.
const Every = 250 * time.Millisecond

// Files is a value of type T made of the files at some paths.
type Files[T any] struct {
	value[T]
	list  func() ([]string, error) // gives the paths of the files
	parse func([]File) (T, error)  // nil: fixed
	seen  look                     // the files at the last attempt, good or bad; under mu
}

// look is what one reading of the files gave.
type look struct {
	files []File
	err   error
}

// Open makes the value for the first time. name says in the log what it is;
// parse gets the files in the order of paths. Nothing of a content is logged but
// what parse says in its error. A nil log means silence.
func Open[T any](name string, log *slog.Logger, parse func([]File) (T, error), paths ...string) (*Files[T], error) {
	return OpenList(name, log, parse, func() ([]string, error) { return paths, nil })
}

// OpenList is Open for files that come and go, such as those of a directory: list
// is called for their paths before each reading.
func OpenList[T any](name string, log *slog.Logger, parse func([]File) (T, error),
	list func() ([]string, error)) (*Files[T], error) {
	f := &Files[T]{value: newValue[T](name, log), list: list, parse: parse}
	if err := f.load(f.read()); err != nil {
		return nil, err
	}
	return f, nil
}

// Fixed is a value without files, which never changes.
func Fixed[T any](value T) *Files[T] {
	f := &Files[T]{}
	f.present.Store(&value)
	return f
}

// Reload makes the value again, whether the files changed or not. On an error,
// which it also logs, the present value stays. A fixed one has nothing to reload.
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
	var before look
	for {
		select {
		case <-ticker.C:
			before = f.follow(before)
		case <-ctx.Done():
			return
		}
	}
}

// follow looks at the files once. It reloads those that are not as at the last
// attempt, so a bad one is reported once, and are as the look before found them:
// whoever writes them may not have come to the end.
func (f *Files[T]) follow(before look) look {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.read()
	if now.same(before) && !now.same(f.seen) {
		_ = f.attempt(now) // logged, and told to the hooks
	}
	return now
}

func (f *Files[T]) read() look {
	paths, err := f.list()
	if err != nil {
		return look{err: fmt.Errorf("load %s: %w", f.name, err)}
	}
	files, err := Read(f.name, paths...)
	return look{files, err}
}

// attempt tries what was read and tells of it. The caller holds mu.
func (f *Files[T]) attempt(now look) error {
	err := f.load(now)
	f.tell(err, "files", len(now.files))
	return err
}

// load makes the present value of what was read, if it is good.
func (f *Files[T]) load(now look) error {
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

func (l look) same(other look) bool {
	return reason(l.err) == reason(other.err) && slices.EqualFunc(l.files, other.files, func(a, b File) bool {
		return a.Path == b.Path && bytes.Equal(a.Data, b.Data)
	})
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
