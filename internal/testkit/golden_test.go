package testkit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// failed is a test that has failed, so its output may lack a part.
type failed struct{ testing.TB }

func (failed) Failed() bool { return true }

func TestFailedTestWritesNoGoldenFile(t *testing.T) {
	defer func(before bool) { *testkit.Update = before }(*testkit.Update)
	*testkit.Update = true
	path := filepath.Join(t.TempDir(), "story.txt")
	testkit.Golden(failed{t}, path, "")
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is written: %v", err)
	}
	testkit.Golden(t, path, "all")
	if text, err := os.ReadFile(path); err != nil || string(text) != "all" {
		t.Errorf("a test that has not failed wrote %q, %v", text, err)
	}
}
