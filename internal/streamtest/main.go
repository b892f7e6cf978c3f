package streamtest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// underMain tells that Main runs the tests and will stop what they share.
var underMain atomic.Bool

// Main runs the tests of a package, stops the servers they shared, and exits.
// Nothing else would stop them: the containers' own reaper may be disabled.
func Main(m *testing.M) {
	underMain.Store(true)
	code := m.Run()
	if list := sharedRedis.refused(); len(list) > 0 {
		fmt.Fprintf(os.Stderr, "streamtest: deploy/users.acl has too little, the shared Redis refused:\n  %s\n",
			strings.Join(list, "\n  "))
		code = max(code, 1)
	}
	sharedRedis.close()
	sharedNATS.close()
	os.Exit(code)
}

// shared is a server started by the first test that asks for it and stopped by Main.
type shared struct {
	mu      sync.Mutex
	started bool
	url     string
	note    string // what serves, where that is worth a line in the test's log
	stop    func()
	err     error
}

// get answers the server's URL, or why there is none: a second test gets the
// first one's answer at once.
func (s *shared) get(t testing.TB, start func() (url, note string, stop func(), err error)) (string, error) {
	t.Helper()
	if !underMain.Load() {
		t.Fatal("a package that shares servers needs: func TestMain(m *testing.M) { streamtest.Main(m) }")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.url, s.note, s.stop, s.err = start()
		s.started = true
	}
	if s.note != "" {
		t.Log(s.note)
	}
	return s.url, s.err
}

func (s *shared) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// refused lists what users were refused on a Redis that was started: a script
// or a caller may have gone on as if nothing had been.
func (s *shared) refused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return nil
	}
	list, err := refused(s.url)
	if err != nil {
		list = []string{"its ACL LOG cannot be read: " + err.Error()}
	}
	return list
}
