package check

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

var localRule = &windows.Rule{Name: "local", Match: "*", OnError: windows.OnErrorLocal,
	Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}

// While Redis is away, a server counts alone, and its memory does not grow with the keys that are asked for.
func TestLocalCountsAreBounded(t *testing.T) {
	s := newService(t, streamtest.Connect(t, "127.0.0.1:1"), Config{}, localRule)
	const many = maxLocalKeys + 1000
	reqs := make([]api.CheckRequest, many)
	for i := range reqs {
		reqs[i] = api.CheckRequest{Key: fmt.Sprint("local:", i), Cost: 1}
	}
	for i, e := range s.CheckEach(t.Context(), reqs) {
		if e.Err != nil || !e.Allowed || e.Source != api.SourceLocal {
			t.Fatalf("%s: %+v, %v, want it allowed by this process", reqs[i].Key, e.CheckAnswer, e.Err)
		}
	}
	if n := s.local.Len(); n != maxLocalKeys {
		t.Errorf("%d keys are held after %d, want %d", n, many, maxLocalKeys)
	}
}

// While Redis is away, each of several servers admits its share of the limit, as the client's Local does.
func TestLocalCountsItsShare(t *testing.T) {
	s := newService(t, streamtest.Connect(t, "127.0.0.1:1"), Config{Instances: 4}, localRule)
	for i, want := range []struct {
		cost    int64
		allowed bool
		note    string
	}{{1, true, ""}, {3, false, "the cost 3 is above this process's share of the limit, one of 4"}, {1, true, ""},
		{1, false, ""}} {
		a, err := s.Check(t.Context(), api.CheckRequest{Key: "k", Cost: want.cost})
		if err != nil || a.Allowed != want.allowed || a.Source != api.SourceLocal || a.Windows[0].Limit != 2 ||
			a.Note != want.note || (a.RetryAfterMs > 0) != (!a.Allowed && a.Note == "") {
			t.Errorf("%d: %+v, %v", i, a, err)
		}
	}
	config := s.config
	config.Instances = -1
	if _, err := NewService(config); err == nil {
		t.Error("Instances -1: no error")
	}
}

// hurried is a context whose deadline passes before its timer fires.
type hurried struct {
	context.Context
	late bool
}

func (h *hurried) Deadline() (time.Time, bool) { return time.Now(), h.late }

// A caller that leaves Redis no time, or that goes away, does not open the breaker for the others. Nor does a refusal
// by Redis.
func TestHurriedCallersOpenNoBreaker(t *testing.T) {
	h := newShard(Config{Timeout: 10 * time.Second}, func(gobreaker.State, error) {}, nil)
	slow := errors.New("i/o timeout")
	ended, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, c := range []struct {
		ctx      context.Context
		harmless error
	}{{ended, context.DeadlineExceeded}, {t.Context(), context.Canceled},
		{t.Context(), streamtest.Refusal("WRONGTYPE")}} {
		for range 20 {
			ctx, leave := context.WithCancel(t.Context())
			hurried := &hurried{Context: t.Context()}
			for _, err := range []error{
				h.execute(ctx, func() error { leave(); return slow }),
				h.execute(hurried, func() error { hurried.late = true; return slow }),
			} {
				if !errors.Is(err, slow) {
					t.Fatalf("error %v of a caller that left: the breaker is open", err)
				}
			}
			if err := h.execute(c.ctx, func() error { return c.harmless }); !errors.Is(err, c.harmless) {
				t.Fatalf("error %v after %v: the breaker is open", err, c.harmless)
			}
		}
	}
	for range 5 {
		_ = h.execute(t.Context(), func() error { return slow })
	}
	err := h.execute(t.Context(), func() error { return slow })
	if !errors.Is(err, api.ErrNotSent) {
		t.Errorf("error %v after five failures, want an open breaker", err)
	}
}
