package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// counted counts what is asked of a Checker.
type counted struct {
	client.Checker
	n atomic.Int64
}

func (c *counted) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.n.Add(1)
	return c.Checker.Check(ctx, req)
}

// Over every transport a client that remembers denials asks once in 10 ms for a key that is
// denied, and its answers are the server's.
func TestDenialsAreRemembered(t *testing.T) {
	onEveryTransport(t, func(t *testing.T, _ *world, c client.Checker, way way) {
		asks := &counted{Checker: c}
		n, err := client.New(asks, client.Config{Denials: 10, Timeout: patience, Policy: client.Deny})
		testkit.Must(t, err)
		spent, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 10})
		testkit.Must(t, err)
		if !spent.Allowed {
			t.Fatalf("%+v", spent)
		}
		begin := time.Now()
		for range 2000 {
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1"})
			testkit.Must(t, err)
			if a.Allowed || a.Windows[0].Used != 10 || a.RetryAfterMs > 60_000 || a.RetryAfterMs < 50_000 {
				t.Fatalf("%+v", a)
			}
		}
		most := int64(time.Since(begin)/(10*time.Millisecond)) + 2
		if asked := asks.n.Load() - 1; way.whole && asked > most {
			t.Errorf("it asked %d times, expected at most %d", asked, most)
		}
		all, err := n.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:2"}, {Key: "user:1"}})
		testkit.Must(t, err)
		if all.Allowed || all.RetryAfterMs == 0 || len(all.Checks) != 2 {
			t.Errorf("%+v", all)
		}
		each, err := n.CheckEach(t.Context(), []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}, {Key: ""}})
		testkit.Must(t, err)
		if each[0].Allowed || !each[1].Allowed || !errors.Is(each[2].Err, api.ErrBadKey) {
			t.Errorf("%+v", each)
		}
		if _, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 11}); !errors.Is(err,
			api.ErrCostExceedsLimit) {
			t.Errorf("a cost above the limit: %v", err)
		}
	}, &windows.Rule{Name: "user", Match: "user:*", Windows: []windows.Window{{Limit: 10, Per: time.Minute}}})
}
