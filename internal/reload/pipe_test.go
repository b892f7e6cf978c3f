//go:build unix

package reload_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A pipe among the files is an error. Nobody has to write to it before the other files are read again.
func TestAPipeDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	a, pipe := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	f, err := reload.OpenList("letters", nil, joined,
		func() ([]string, error) { return filepath.Glob(filepath.Join(dir, "?")) })
	testkit.Must(t, err)
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	outcome := make(chan error, 1)
	go func() { outcome <- f.Reload() }()
	select {
	case err := <-outcome:
		if err == nil || !strings.Contains(err.Error(), pipe+": it is not a regular file") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the reload waits for a writer")
		testkit.Must(t, os.WriteFile(pipe, nil, 0))
		<-outcome
	}
	testkit.Must(t, os.Remove(pipe))
	write(t, a, "2")
	if err := f.Reload(); err != nil || f.Value() != "2" {
		t.Errorf("%q, %v", f.Value(), err)
	}
}

// A pipe that is given at the start is read once, and not followed: --tokens <(decrypt tokens.yml).
func TestAPipeIsReadAtTheStart(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "a")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("1"), 0) }()
	f, err := reload.Open("letters", nil, joined, pipe)
	testkit.Must(t, err)
	testkit.Must(t, <-written)
	if err := f.Reload(); err != nil || f.Value() != "1" {
		t.Error(f.Value(), err)
	}
}
