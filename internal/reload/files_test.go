package reload_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// joined makes a value from all files; a file that contains "bad" cannot be used.
func joined(files []reload.File) (string, error) {
	var all []string
	for _, f := range files {
		all = append(all, string(f.Data))
	}
	text := strings.Join(all, "|")
	if strings.Contains(text, "bad") {
		return "", errors.New("it is bad")
	}
	return text, nil
}

// world is a followed value, with a simulated clock.
type world struct {
	t *testing.T
	*reload.Files[string]

	log   testkit.Log
	mu    sync.Mutex
	heard []error
}

// attempts returns the outcome of each reload so far.
func (w *world) attempts() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.heard)
}

// followed runs a story about the files at paths, or at those that list returns.
func followed(t *testing.T, list func() ([]string, error), story func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		var err error
		w.Files, err = reload.OpenList("letters", slog.New(slog.NewTextHandler(&w.log, nil)), joined, list)
		testkit.Must(t, err)
		w.OnReload(func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.heard = append(w.heard, err)
		})
		testkit.Background(t, w.Run)
		story(w)
	})
}

func these(paths ...string) func() ([]string, error) {
	return func() ([]string, error) { return paths, nil }
}

// pass waits for so many readings of the files.
func (w *world) pass(looks int) {
	time.Sleep(time.Duration(looks) * reload.Every)
	synctest.Wait()
}

// want waits until a change is noticed, and compares the value and the number of attempts.
func (w *world) want(step, value string, attempts int) {
	w.t.Helper()
	w.pass(3)
	if heard := w.attempts(); w.Value() != value || len(heard) != attempts {
		w.t.Errorf("%s: %q after %d attempts %v, want %q after %d", step, w.Value(), len(heard), heard, value,
			attempts)
	}
}

func TestFilesAreFollowed(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	followed(t, these(a, b), func(w *world) {
		w.want("nothing changed", "1|2", 0)
		write(t, b, "3")
		w.want("the second changed", "1|3", 1)
		write(t, a, "bad")
		w.pass(100)
		w.want("a bad one keeps what was there, and is tried once", "1|3", 2)
		testkit.Must(t, os.Remove(a))
		w.pass(100)
		w.want("one is gone", "1|3", 3)
		if err := w.attempts()[2]; !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "load letters") {
			t.Error(err)
		}
		// As an editor does: another file is renamed to this name.
		write(t, a+".new", "4")
		testkit.Must(t, os.Rename(a+".new", a))
		w.want("one was renamed over it", "4|3", 4)
		write(t, a, strings.Repeat("x", reload.MaxBytes+1))
		w.want("one is too large", "4|3", 5)
		write(t, a, "")
		w.want("one is empty", "|3", 6)
		var second error
		w.OnReload(func(err error) { second = err })
		testkit.Must(t, w.Reload())
		w.want("told to, though nothing changed", "|3", 7)
		write(t, a, "bad")
		err := w.Reload()
		if w.want("told to, with a bad one", "|3", 8); err == nil || w.attempts()[7] != err || second != err {
			t.Errorf("%v, hooks %v and %v", err, w.attempts()[7], second)
		}
		if n := strings.Count(w.log.String(), "level=ERROR"); n != 4 {
			t.Errorf("%d errors in the log, want 4:\n%s", n, &w.log)
		}
	})
}

// A file that is being written is not used before it stops changing.
func TestHalfAFileIsNotTaken(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	write(t, a, "1")
	followed(t, these(a), func(w *world) {
		w.pass(1)
		for i := range 9 {
			write(t, a, fmt.Sprint("bad", i))
			w.pass(1)
		}
		write(t, a, "2")
		w.want("written in ten pieces", "2", 1)
	})
}

// Kubernetes: a -> ..data/a, ..data -> a separate directory for each version; only ..data is swapped.
func TestASwappedLinkIsSeen(t *testing.T) {
	dir := t.TempDir()
	version := func(i int) {
		name := fmt.Sprintf("..2026_%d", i)
		testkit.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "a"), fmt.Sprint(i))
		testkit.Must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		testkit.Must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		testkit.Must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%d", i-1))))
	}
	version(1)
	testkit.Must(t, os.Symlink(filepath.Join("..data", "a"), filepath.Join(dir, "a")))
	followed(t, these(filepath.Join(dir, "a")), func(w *world) {
		for i := 2; i < 5; i++ {
			version(i)
			w.want("swapped", fmt.Sprint(i), i-1)
		}
	})
}

// New and removed files are noticed, and also a file that replaces another one with the same content.
func TestAListIsFollowed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "1")
	followed(t, func() ([]string, error) { return filepath.Glob(filepath.Join(dir, "?")) }, func(w *world) {
		write(t, filepath.Join(dir, "b"), "2")
		w.want("one came", "1|2", 1)
		testkit.Must(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "c")))
		w.want("one has another name", "1|2", 2)
		testkit.Must(t, os.Remove(filepath.Join(dir, "a")))
		w.want("one went", "2", 3)
	})
}

func TestOpenNeedsGoodFiles(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	if _, err := reload.Open("letters", nil, joined, a, a); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "load letters") {
		t.Errorf("no file: %v", err)
	}
	write(t, a, "bad")
	if _, err := reload.Open("letters", nil, joined, a, a); err == nil || err.Error() != "it is bad" {
		t.Errorf("a bad file: %v", err)
	}
	gone := errors.New("no list")
	if _, err := reload.OpenList("letters", nil, joined,
		func() ([]string, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("no list: %v", err)
	}
}

// An endless file is not read without a bound.
func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	f, err := os.Create(path)
	testkit.Must(t, err)
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil { // sparse
		t.Skipf("no sparse files here: %v", err)
	}
	if _, err := reload.Read("letters", path); err == nil ||
		!strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Error(err)
	}
	write(t, path, strings.Repeat("x", reload.MaxBytes))
	paths := make([]string, reload.MaxTotal/reload.MaxBytes)
	for i := range paths {
		paths[i] = path
	}
	if _, err := reload.Read("letters", paths...); err != nil {
		t.Error(err)
	}
	if _, err := reload.Read("letters", append(paths, path)...); err == nil ||
		!strings.Contains(err.Error(), "more than 16 MB in all") {
		t.Error(err)
	}
}
