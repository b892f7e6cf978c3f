package testkit

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update tells that golden files are to be written: go test ./the/package -update.
var Update = flag.Bool("update", false, "write the golden files")

// Golden compares text with the file at path, or with -update writes it there.
func Golden(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		Must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	Must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}
