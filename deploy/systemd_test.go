package deploy_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// systemd takes the units as they are, and finds little that they could still do without.
func TestSystemdUnits(t *testing.T) {
	analyze := streamtest.Program(t, "systemd-analyze")
	units, err := filepath.Glob("systemd/*.service")
	testkit.Must(t, err)
	if len(units) != 2 {
		t.Fatalf("units: %v", units)
	}
	for _, unit := range units {
		// verify wants the program to be there.
		text := strings.Replace(read(t, unit), "/usr/local/bin/streamcounter", "/bin/true", 1)
		if text == read(t, unit) {
			t.Errorf("%s does not start /usr/local/bin/streamcounter", unit)
		}
		file := testkit.WriteFile(t, filepath.Base(unit), text)
		for _, args := range [][]string{
			{"verify", "--man=no", file},
			{"security", "--offline=true", "--threshold=20", "--no-pager", file}, // of 100
		} {
			out, err := exec.Command(analyze, args...).CombinedOutput()
			// verify warns of what it does not know, and exits with 0.
			if err != nil || strings.Contains(string(out), file) && args[0] == "verify" {
				t.Errorf("systemd-analyze %v: %v\n%s", args, err, out)
			}
		}
	}
}
