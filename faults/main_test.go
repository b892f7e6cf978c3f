package faults

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// build gives the path of the program, built as it stands.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "streamcounter")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/streamcounter").CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return path
}
