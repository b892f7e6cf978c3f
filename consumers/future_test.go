package consumers_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A producer appends an event with the greatest possible ID, so nobody can append any more: this is logged once, and
// a metric shows it until the stream is deleted.
func TestAnIDOfTheFutureIsTold(t *testing.T) {
	ctx := context.Background()
	w, log := newWorld(t, shared(t)), &testkit.Log{}
	event := &redis.XAddArgs{Stream: w.keys.Events(2), ID: "18446744073709551615-18446744073709551615",
		Values: []any{"key", w.keyIn(2, "k")}}
	testkit.Must(t, w.redis.XAdd(ctx, event).Err())
	w.start(&recorder{}, func(c *consumers.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	w.eventually("the metric tells", func() (bool, string) {
		n := w.sample("newest_event_ahead_seconds")
		return n > 1e9 && strings.Contains(log.String(), "ID of the future"), fmt.Sprint(n)
	})
	w.redis.Del(ctx, w.keys.Events(2))
	w.shows("newest_event_ahead_seconds", 0)
	if n := strings.Count(log.String(), "ID of the future"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}
