package direct_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// scripts counts the runs of scripts; before each it calls `before`, where there is one.
type scripts struct {
	runs   atomic.Int64
	before func()
}

func (s *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			s.runs.Add(1)
			if s.before != nil {
				s.before()
			}
		}
		return next(ctx, cmd)
	}
}

func (s *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Checks of many goroutines share runs of the script, as in serve: with 64 that ask all the
// time a run holds those that came during the one before.
func TestConcurrentChecksShareRuns(t *testing.T) {
	const callers, each = 64, 50
	var asking, active atomic.Int64 // callers that wait for an answer, that will ask again
	active.Store(callers)
	counted := &scripts{before: func() { // the others are on their way while a run is
		for asking.Load() < active.Load() {
			runtime.Gosched()
		}
	}}
	c := streamtest.Connect(t, streamtest.Redis(t))
	r, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: tenAMinute(t), Prefix: streamtest.Prefix(t)})
	testkit.Must(t, err)
	c.AddHook(counted)
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			for n := range each {
				asking.Add(1)
				a, err := r.Check(t.Context(), api.CheckRequest{Key: fmt.Sprint("user:", i, "-", n)})
				if err != nil || !a.Allowed {
					t.Errorf("%+v, %v", a, err)
				}
				if n == each-1 {
					active.Add(-1)
				}
				asking.Add(-1)
			}
		})
	}
	running.Wait()
	if runs := counted.runs.Load(); runs > callers*each/4 { // how many depends on the machine
		t.Errorf("%d checks of %d callers took %d runs, expected 4 checks of a run at least", callers*each, callers,
			runs)
	}
}

func TestDenialsFromMemory(t *testing.T) {
	counted := &scripts{}
	c := streamtest.Connect(t, streamtest.Redis(t))
	r, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: tenAMinute(t), Prefix: streamtest.Prefix(t),
		Denials: 10})
	testkit.Must(t, err)
	c.AddHook(counted)
	ask := func(cost int64) api.CheckAnswer {
		a, err := r.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: cost})
		testkit.Must(t, err)
		return a
	}
	ask(10)
	begin, fromMemory := time.Now(), 0
	for range 1000 {
		a := ask(1)
		if a.Allowed {
			t.Fatalf("%+v", a)
		}
		if a.Source == api.SourceCache {
			fromMemory++
		}
	}
	most := 4 + int64(time.Since(begin)/(40*time.Millisecond))
	if n := counted.runs.Load(); n > most || fromMemory < 1 {
		t.Errorf("1,001 checks took %d runs, expected at most %d; %d were answered from memory", n, most, fromMemory)
	}
}
