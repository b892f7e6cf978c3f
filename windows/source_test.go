package windows

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// limited is a file with a limit.
func limited(limit any) string {
	return fmt.Sprintf("rules:\n  - {name: api, match: '*', windows: [{limit: %v, per: 1m}]}\n", limit)
}

func (s *Source) limit() int64 { return s.Rules().List()[0].Windows[0].Limit }

func TestASourceFollowsItsFile(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	path := filepath.Join(t.TempDir(), "rules.yml")
	write(t, path, limited(1))
	s, err := NewSource(path, nil)
	testkit.Must(t, err)
	heard := make(chan error, 10)
	s.OnReload(func(err error) { heard <- err })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	write(t, path, limited("x"))
	if err := <-heard; err == nil || !strings.HasPrefix(err.Error(), path+`:2:47: limit "x"`) || s.limit() != 1 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
	write(t, path, limited(2))
	if err := <-heard; err != nil || s.limit() != 2 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
	cancel()
	<-ended
	write(t, path, limited(3))
	if err := s.Reload(); err != nil || s.limit() != 3 {
		t.Errorf("%v, limit %d", err, s.limit())
	}
}

func TestNewSourceRefusesABadFile(t *testing.T) {
	if s, err := NewSource("testdata/busted_per_number.yml", nil); s != nil || err == nil {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := NewSource("testdata/none.yml", nil); s != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", s, err)
	}
}

func TestFixed(t *testing.T) {
	rules := rulesOf(t, "*")
	s := Fixed(rules)
	s.OnReload(func(error) { t.Error("fixed rules reloaded") })
	testkit.Must(t, s.Reload())
	s.Run(t.Context())
	if s.Rules() != rules {
		t.Errorf("%v", s.Rules())
	}
}
