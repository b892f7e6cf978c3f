package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// limited is a file with a limit.
func limited(limit any) string {
	return fmt.Sprintf("rules:\n  - {name: api, match: '*', windows: [{limit: %v, per: 1m}]}\n", limit)
}

func (s *Source) limit() int64 { return s.Rules().List()[0].Windows[0].Limit }

func TestASourceFollowsItsFile(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	path := testkit.WriteFile(t, "rules.yml", limited(1))
	s, err := NewSource(path, nil)
	testkit.Must(t, err)
	heard := make(chan error, 10)
	s.OnReload(func(err error) { heard <- err })
	stop := testkit.Background(t, s.Run)
	testkit.Must(t, os.WriteFile(path, []byte(limited("x")), 0o600))
	if err := <-heard; err == nil || !strings.HasPrefix(err.Error(), path+`:2:47: limit "x"`) || s.limit() != 1 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
	stop()
	testkit.Must(t, os.WriteFile(path, []byte(limited(2)), 0o600))
	if err := s.Reload(); err != nil || s.limit() != 2 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
}

func TestAFileThatIsMissing(t *testing.T) {
	const path = "testdata/none.yml"
	s, err := NewSource(path, nil)
	rules, loadErr := Load(path)
	if s != nil || !errors.Is(err, fs.ErrNotExist) || rules != nil || !errors.Is(loadErr, fs.ErrNotExist) ||
		!strings.Contains(loadErr.Error(), path) {
		t.Errorf("%v, %v; %v, %v", s, err, rules, loadErr)
	}
}
