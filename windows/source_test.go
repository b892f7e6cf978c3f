package windows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

// limited is a file whose one rule has that limit; "x" makes it a bad one.
func limited(limit any) string {
	return fmt.Sprintf("rules:\n  - {name: api, match: \"*\", windows: [{limit: %v, per: 1s}]}\n", limit)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watched is a source over a file, with what its hook was told.
type watched struct {
	*Source
	t     *testing.T
	path  string
	log   *bytes.Buffer
	heard chan error
}

func newWatched(t *testing.T, path string) *watched {
	t.Helper()
	w := &watched{t: t, path: path, log: &bytes.Buffer{}, heard: make(chan error, 100)}
	var err error
	w.Source, err = NewSource(path, slog.New(slog.NewTextHandler(w.log, nil)))
	must(t, err)
	w.OnReload(func(err error) { w.heard <- err })
	return w
}

// run starts Run, and proves at the end that it ends well and leaves nothing.
func run(t *testing.T, path string) *watched {
	t.Helper()
	before := goleak.IgnoreCurrent()
	w := newWatched(t, path)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		goleak.VerifyNone(t, before)
	})
	return w
}

func (w *watched) limit() int64 { return w.Rules().List()[0].Windows[0].Limit }

// until waits for a reload that brings this limit. A file may be seen half
// written, which only a later report mends: earlier ones are passed over.
func (w *watched) until(limit int64) {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case err := <-w.heard:
			if err == nil && w.limit() == limit {
				return
			}
		case <-deadline:
			w.t.Fatalf("limit %d, still waiting for %d; log:\n%s", w.limit(), limit, w.log)
		}
	}
}

// untilBad waits for an error that says this.
func (w *watched) untilBad(says string) {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case err := <-w.heard:
			if err != nil && strings.Contains(err.Error(), says) {
				return
			}
		case <-deadline:
			w.t.Fatalf("still waiting for an error that says %q; log:\n%s", says, w.log)
		}
	}
}

func TestRunTakesAChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	w := run(t, path)
	before := w.LoadedAt()
	write(t, path, limited(2))
	w.until(2)
	write(t, path, limited(3)) // the first may have come before the watch
	w.until(3)
	if !w.LoadedAt().After(before) {
		t.Errorf("loaded at %v, then at %v", before, w.LoadedAt())
	}
}

func TestRunTakesWhatChangedBeforeIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	w := newWatched(t, path)
	write(t, path, limited(2))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, w.Run(ctx))
	w.until(2)
}

func TestRunKeepsTheRulesOverABadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	w := run(t, path)
	for limit := int64(2); limit < 4; limit++ { // break and mend, twice
		at := w.LoadedAt()
		write(t, path, limited("x"))
		w.untilBad(path + `:2:47: limit "x"`)
		if w.limit() != limit-1 || w.LoadedAt() != at {
			t.Errorf("limit %d loaded at %v, want %d at %v", w.limit(), w.LoadedAt(), limit-1, at)
		}
		write(t, path, limited(limit))
		w.until(limit)
	}
}

func TestRunSeesARenameOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	w := run(t, path)
	for limit := int64(2); limit < 4; limit++ { // twice: the first renamed file is watched as well
		write(t, path+".new", limited(limit))
		must(t, os.Rename(path+".new", path))
		w.until(limit)
	}
}

// Kubernetes: rules.yml -> ..data/rules.yml, ..data -> a directory of its own
// for each version; only ..data is swapped.
func TestRunSeesAConfigMapSwap(t *testing.T) {
	dir := t.TempDir()
	version := func(limit int64) {
		name := fmt.Sprintf("..2026_%d", limit)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "rules.yml"), limited(limit))
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%d", limit-1))))
	}
	version(1)
	path := filepath.Join(dir, "rules.yml")
	must(t, os.Symlink(filepath.Join("..data", "rules.yml"), path))
	w := run(t, path)
	version(2)
	w.until(2)
	version(3)
	w.until(3)
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	w := newWatched(t, path)
	var second error
	w.OnReload(func(err error) { second = err })

	write(t, path, limited("x"))
	err := w.Reload()
	if err == nil || <-w.heard != err || second != err {
		t.Errorf("Reload: %v, second hook: %v", err, second)
	}
	if n := strings.Count(w.log.String(), "level=ERROR"); n != 1 || w.limit() != 1 {
		t.Errorf("limit %d, %d errors in the log, want 1 and 1:\n%s", w.limit(), n, w.log)
	}
	must(t, os.Remove(path))
	if err := w.Reload(); !errors.Is(err, fs.ErrNotExist) || <-w.heard != err || w.limit() != 1 {
		t.Errorf("Reload: %v, limit %d", err, w.limit())
	}
	write(t, path, limited(2))
	must(t, w.Reload())
	if err := <-w.heard; err != nil || second != nil || w.limit() != 2 {
		t.Errorf("hooks %v, %v, limit %d", err, second, w.limit())
	}
}

func TestNewSourceRefusesABadFile(t *testing.T) {
	if s, err := NewSource("testdata/busted_per_number.yml", nil); s != nil || err == nil {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := NewSource("testdata/none.yml", nil); s != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", s, err)
	}
}

func TestFixed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	rules := rulesOf(t, "*")
	s := Fixed(rules)
	s.OnReload(func(error) { t.Error("fixed rules reloaded") })
	must(t, s.Reload())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, s.Run(ctx))
	if s.Rules() != rules || s.LoadedAt().IsZero() {
		t.Errorf("%v at %v", s.Rules(), s.LoadedAt())
	}
}

// followed lets a story tell events to follow, on a clock that is not real.
func followed(t *testing.T, story func(w *watched, event func())) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rules.yml")
		write(t, path, limited(1))
		w := newWatched(t, path)
		ctx, cancel := context.WithCancel(context.Background())
		events := make(chan fsnotify.Event)
		rewatched := 0
		done := make(chan error, 1)
		go func() { done <- w.follow(ctx, events, nil, func() { rewatched++ }) }()
		start := time.Now()
		story(w, func() { events <- fsnotify.Event{Name: "any", Op: fsnotify.Write} })
		cancel()
		must(t, <-done)
		if want := int(time.Since(start) / recheck); rewatched != want {
			t.Errorf("watch renewed %d times, want %d", rewatched, want)
		}
	})
}

// after lets the clock go on and tells what the hook heard meanwhile.
func (w *watched) after(d time.Duration) (heard []error) {
	time.Sleep(d)
	synctest.Wait()
	for len(w.heard) > 0 {
		heard = append(heard, <-w.heard)
	}
	return heard
}

func TestABurstIsOneReload(t *testing.T) {
	followed(t, func(w *watched, event func()) {
		for limit := range 9 {
			write(t, w.path, limited(limit+2))
			event()
			if heard := w.after(settle - 1); heard != nil {
				t.Errorf("in the burst: %v", heard)
			}
		}
		if heard := w.after(1); len(heard) != 1 || heard[0] != nil || w.limit() != 10 {
			t.Errorf("after the burst: %v, limit %d", heard, w.limit())
		}
	})
}

func TestABusyDirectoryHidesNothing(t *testing.T) {
	followed(t, func(w *watched, event func()) {
		write(t, w.path, limited(2))
		for range int(patience / (settle / 2)) {
			event()
			w.after(settle / 2)
		}
		if w.limit() != 2 {
			t.Errorf("limit %d after %v", w.limit(), patience)
		}
	})
}

func TestAnUnchangedFileIsNotReloaded(t *testing.T) {
	followed(t, func(w *watched, event func()) {
		write(t, w.path, limited(1))
		event()
		if heard := w.after(2 * recheck); heard != nil {
			t.Errorf("heard %v", heard)
		}
	})
}

func TestABadFileIsReportedOnce(t *testing.T) {
	followed(t, func(w *watched, event func()) {
		must(t, os.Remove(w.path))
		event()
		if heard := w.after(3 * recheck); len(heard) != 1 || !errors.Is(heard[0], fs.ErrNotExist) {
			t.Errorf("file gone: heard %v", heard)
		}
		write(t, w.path, "") // as much content as a file that is gone
		event()
		if heard := w.after(settle); len(heard) != 1 || !strings.Contains(heard[0].Error(), "empty") {
			t.Errorf("file empty: heard %v", heard)
		}
		write(t, w.path, limited(1)) // as it was
		event()
		if heard := w.after(settle); len(heard) != 1 || heard[0] != nil {
			t.Errorf("file back: heard %v", heard)
		}
	})
}

func TestRecheckNeedsNoEvent(t *testing.T) {
	followed(t, func(w *watched, _ func()) {
		write(t, w.path, limited(2))
		if heard := w.after(recheck); len(heard) != 1 || w.limit() != 2 {
			t.Errorf("heard %v, limit %d", heard, w.limit())
		}
	})
}

func TestALostWatchIsSaid(t *testing.T) {
	events := make(chan fsnotify.Event)
	close(events)
	w := &Source{input: Input{Name: "rules.yml"}}
	if err := w.follow(t.Context(), events, nil, nil); !errors.Is(err, fsnotify.ErrClosed) {
		t.Error(err)
	}
}

func TestRunSaysWhatItCannotWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "rules.yml")
	write(t, path, limited(1))
	w := newWatched(t, path)
	must(t, os.RemoveAll(dir))
	if err := w.Run(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}
