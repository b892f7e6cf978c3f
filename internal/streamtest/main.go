package streamtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// underMain is true if Main runs the tests and will stop the shared servers.
var underMain atomic.Bool

// Main runs the tests of a package, stops the servers they shared, and exits.
// Nothing else would stop them: the containers' own reaper may be disabled.
func Main(m *testing.M) {
	if os.Getenv(isNATSServer) != "" {
		if err := runNATSServer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	underMain.Store(true)
	waitTogether()
	code := m.Run()
	if list := sharedRedis.refused(); len(list) > 0 {
		fmt.Fprintf(os.Stderr, "streamtest: deploy/users.acl has too little, the shared Redis refused:\n  %s\n",
			strings.Join(list, "\n  "))
		code = max(code, 1)
	}
	sharedRedis.close()
	sharedNATS.close()
	program.close()
	os.Exit(code)
}

// waitTogether lets more parallel tests run than there are cores, unless -parallel is given: parallel tests wait for
// servers for most of their time.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", fmt.Sprint(4*runtime.GOMAXPROCS(0)))
	}
}

var program shared

// Build returns the path of the program. EnvProgram can name it. Otherwise Build compiles the program, once per
// package.
func Build(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(EnvProgram); path != "" {
		return path
	}
	path, err := program.get(t, func() (string, string, func(), error) {
		dir, err := os.MkdirTemp("", "streamtest-program-")
		if err != nil {
			return "", "", nil, err
		}
		path := filepath.Join(dir, "streamcounter")
		out, err := exec.Command("go", "build", "-o", path,
			"github.com/streamcounter/streamcounter/cmd/streamcounter").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
		return path, "", func() { os.RemoveAll(dir) }, err
	})
	testkit.Must(t, err)
	return path
}

// shared is a server started by the first test that asks for it and stopped by Main.
type shared struct {
	once sync.Once
	url  string
	note string // which server it is, if the test's log should say so
	stop func()
	err  error
}

// get returns the server's URL, or why there is none. Later calls return the result of the first call at once.
func (s *shared) get(t testing.TB, start func() (url, note string, stop func(), err error)) (string, error) {
	t.Helper()
	if !underMain.Load() {
		t.Fatal("a package that shares servers needs: func TestMain(m *testing.M) { streamtest.Main(m) }")
	}
	s.once.Do(func() { s.url, s.note, s.stop, s.err = start() })
	if s.note != "" {
		t.Log(s.note)
	}
	return s.url, s.err
}

func (s *shared) close() {
	if s.stop != nil {
		s.stop()
	}
}

// refused lists the commands that a started Redis has refused to users: a script or a caller may have ignored the
// error.
func (s *shared) refused() []string {
	if s.stop == nil {
		return nil
	}
	list, err := refused(s.url)
	if err != nil {
		list = []string{"its ACL LOG cannot be read: " + err.Error()}
	}
	return list
}
