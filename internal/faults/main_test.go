package faults

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// TestMain keeps go-redis quiet: that connections fail is what is done here.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	streamtest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// build gives the path of the program, built as it stands.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "streamcounter")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/streamcounter").CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return path
}
