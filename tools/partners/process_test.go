package partners

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// program is a process that runs until its test ends.
type program struct {
	*streamtest.Child
	t    testing.TB
	name string
}

// start runs a program with variables in addition to the test's own.
func start(t testing.TB, env []string, path string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	ours := func(line string) bool { return strings.HasPrefix(line, "STREAMCOUNTER_") }
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), env...)
	p := &program{streamtest.Run(t, cmd), t, filepath.Base(path)}
	t.Cleanup(p.stop)
	return p
}

// stop ends the program as SIGTERM does, or by SIGKILL if that takes more than 10 seconds.
func (p *program) stop() {
	_ = p.Cmd.Process.Signal(syscall.SIGCONT)
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Gone:
	case <-time.After(time.Minute):
		_ = p.Cmd.Process.Kill()
		<-p.Gone
	}
}

// until waits for a pattern in the output, and returns its groups.
func (p *program) until(pattern string) []string {
	p.t.Helper()
	var found []string
	compiled := regexp.MustCompile(pattern)
	p.Eventually(fmt.Sprintf("%s says %s", p.name, pattern), func() (bool, string) {
		found = compiled.FindStringSubmatch(p.String())
		return found != nil, "its output is shown below"
	})
	return found
}

// built returns the path of a program that `make partners` builds.
func built(t testing.TB, name string) string {
	t.Helper()
	for _, p := range Programs {
		if p.Name == name {
			if _, err := os.Stat(p.Path()); err != nil {
				t.Fatalf("%v: run make partners, which builds it", err)
			}
			return p.Path()
		}
	}
	t.Fatalf("%s is not in the table of programs", name)
	return ""
}

// ours is the program streamcounter, built once from this repository unless STREAMCOUNTER_TEST_PROGRAM is its path.
// Main of the tests does not remove it, because it is in bin.
var ours = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("STREAMCOUNTER_TEST_PROGRAM"); path != "" {
		return path, nil
	}
	path := filepath.Join(Dir(), "streamcounter")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/streamcounter").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build streamcounter: %w\n%s", err, out)
	}
	return path, nil
})

func streamcounter(t testing.TB, env []string, args ...string) *program {
	t.Helper()
	path, err := ours()
	testkit.Must(t, err)
	return start(t, env, path, args...)
}

// at returns the address of streamcounter for a protocol, from its log.
func (p *program) at(protocol string) string {
	p.t.Helper()
	return p.until(`"msg":"ready".*"` + protocol + `":"([^"]+)"`)[1]
}

func absolute(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	testkit.Must(t, err)
	return path
}

// programOf returns the path of a program from Debian.
func programOf(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: apt-get install %s", err, Debian[name])
	}
	return path
}

// docs/works-with.md names each program that is built, with its version.
func TestWorksWith(t *testing.T) {
	text, err := os.ReadFile("../../docs/works-with.md")
	testkit.Must(t, err)
	name := strings.NewReplacer("-", "[- ]")
	for _, p := range Programs {
		row := `(?im)^\|[^|]*` + name.Replace(p.Name) + `\b[^|]*\| ` + regexp.QuoteMeta(p.Version) + ` \|`
		if !regexp.MustCompile(row).Match(text) {
			t.Errorf("docs/works-with.md has no row of %s %s", p.Name, p.Version)
		}
	}
	if _, version, _ := strings.Cut(Operator, "@"); !strings.Contains(string(text), "| "+version+" |") {
		t.Errorf("docs/works-with.md has no row of %s", Operator)
	}
}
