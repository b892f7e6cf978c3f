package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/reload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// joined is a value of two files; one that holds "bad" cannot be used.
func joined(contents [][]byte) (string, error) {
	text := string(contents[0]) + "|" + string(contents[1])
	if strings.Contains(text, "bad") {
		return "", errors.New("it is bad")
	}
	return text, nil
}

func TestFilesFollowTheirFiles(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	f, err := reload.Open("letters", nil, joined, a, b)
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []string
	f.OnReload(func(err error) { outcomes = append(outcomes, reasonOf(err)) })
	want := func(step, value string, attempts int) {
		t.Helper()
		if f.Value() != value || len(outcomes) != attempts {
			t.Errorf("%s: %q after %d attempts %q, want %q after %d", step, f.Value(), len(outcomes), outcomes, value, attempts)
		}
	}
	f.ReloadIfChanged()
	want("nothing changed", "1|2", 0)
	write(t, b, "3")
	f.ReloadIfChanged()
	want("the second changed", "1|3", 1)
	write(t, a, "bad")
	f.ReloadIfChanged()
	want("a bad one keeps what was there, and is tried once", "1|3", 2)
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	f.ReloadIfChanged()
	want("one is gone", "1|3", 3)
	// As an editor does, and Kubernetes: another file takes the name.
	write(t, a+".new", "4")
	if err := os.Rename(a+".new", a); err != nil {
		t.Fatal(err)
	}
	f.ReloadIfChanged()
	want("one was renamed over it", "4|3", 4)
	write(t, a, strings.Repeat("x", reload.MaxBytes+1))
	f.ReloadIfChanged()
	want("one is too large", "4|3", 5)
	write(t, a, "4")
	f.ReloadIfChanged()
	if err := f.Reload(); err != nil {
		t.Error(err)
	}
	want("told to, though nothing changed", "4|3", 7)
}

func TestRunLooksAtEachTick(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	write(t, a, "1")
	f, err := reload.Open("letters", nil, joined, a, a)
	if err != nil {
		t.Fatal(err)
	}
	reloaded := make(chan error, 1)
	f.OnReload(func(err error) { reloaded <- err })
	ctx, cancel := context.WithCancel(t.Context())
	tick, ended := make(chan time.Time), make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx, tick)
	}()
	tick <- time.Time{} // nothing changed
	write(t, a+".new", "2")
	if err := os.Rename(a+".new", a); err != nil { // at once: no look sees a half
		t.Fatal(err)
	}
	tick <- time.Time{}
	if err := <-reloaded; err != nil || f.Value() != "2|2" {
		t.Errorf("%q, %v", f.Value(), err)
	}
	cancel()
	<-ended
}

func reasonOf(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

func TestOpenNeedsGoodFiles(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a")
	if _, err := reload.Open("letters", nil, joined, a, a); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "load letters") {
		t.Errorf("no file: %v", err)
	}
	write(t, a, "bad")
	if _, err := reload.Open("letters", nil, joined, a, a); err == nil || err.Error() != "it is bad" {
		t.Errorf("a bad file: %v", err)
	}
}
