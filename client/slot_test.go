package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Two slots are held at once, and a third is denied. A slot that is given back is free, and the other window is
// charged.
func TestSlots(t *testing.T) {
	jobs := rule("job", nil, windows.Window{Limit: 2, Per: time.Minute, InFlight: true},
		windows.Window{Limit: 100, Per: time.Hour})
	throughReserversProxy(t, jobs, func(t *testing.T, w *world, c client.Reserver, _ *streamtest.Proxy) {
		ctx, n := t.Context(), newClient(t, c, client.Config{Timeout: patience})
		var slots []*client.Slot
		for range 2 {
			s, err := n.Acquire(ctx, "job:1", 0)
			testkit.Must(t, err)
			slots = append(slots, s)
		}
		_, err := n.Acquire(ctx, "job:1", 1)
		var over *client.OverLimitError
		if !errors.Is(err, client.ErrOverLimit) || !errors.As(err, &over) || over.Answer.RetryAfterMs != 60_000 {
			t.Errorf("a third: %v", err)
		}
		testkit.Must(t, slots[0].Release(ctx))
		third, err := n.Acquire(ctx, "job:1", 1)
		testkit.Must(t, err)
		testkit.Must(t, slots[1].Commit(ctx, 7))
		testkit.Must(t, third.Cancel(ctx))
		k, err := w.service.Peek(ctx, "job:1")
		testkit.Must(t, err)
		if k.Windows[0].Used != 0 || k.Windows[1].Used != 8 {
			t.Errorf("%+v, want 0 in flight, and 1 and 7 charged", k.Windows)
		}
	})
}
