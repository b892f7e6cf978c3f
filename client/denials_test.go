package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// counted counts the calls of a Checker.
type counted struct {
	client.Checker
	n atomic.Int64
}

func (c *counted) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.n.Add(1)
	return c.Checker.Check(ctx, req)
}

// A client that remembers denials asks once in 10 ms for a key that is denied, and its answers are the server's.
func TestDenialsAreRemembered(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), patience, tenAMinute)
	asks := &counted{Checker: overHTTP(t, w.serveHTTP(t))}
	n := newClient(t, asks, client.Config{Denials: 10, Timeout: patience, Policy: client.Deny})
	check := func(cost int64) api.CheckAnswer {
		t.Helper()
		a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: cost})
		testkit.Must(t, err)
		return a
	}
	if spent := check(10); !spent.Allowed {
		t.Fatalf("%+v", spent)
	}
	begin := time.Now()
	for range 1000 {
		if a := check(1); a.Allowed || a.Windows[0].Used != 10 || a.RetryAfterMs > 60_000 || a.RetryAfterMs < 50_000 {
			t.Fatalf("%+v", a)
		}
	}
	most := int64(time.Since(begin)/(10*time.Millisecond)) + 2
	if asked := asks.n.Load() - 1; asked > most {
		t.Errorf("it asked %d times, expected at most %d", asked, most)
	}
	each, err := n.CheckEach(t.Context(), []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}, {Key: ""}})
	testkit.Must(t, err)
	if each[0].Allowed || !each[1].Allowed || !errors.Is(each[2].Err, api.ErrBadKey) {
		t.Errorf("%+v", each)
	}
	_, err = n.Check(t.Context(), api.CheckRequest{Key: "user:1", Cost: 11})
	if !errors.Is(err, api.ErrCostExceedsLimit) {
		t.Errorf("a cost above the limit: %v", err)
	}
}
