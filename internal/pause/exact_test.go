package pause

import (
	"context"
	"testing"
	"time"
)

func TestExact(t *testing.T) {
	began := time.Now()
	if !Exact(t.Context(), 25*time.Millisecond) || time.Since(began) < 25*time.Millisecond {
		t.Errorf("waited %s, want 25ms at least", time.Since(began))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if Exact(ctx, time.Hour) {
		t.Error("an hour has passed in a context that had ended")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 25*time.Millisecond)
	defer cancel()
	if Exact(ctx, time.Hour) {
		t.Error("an hour has passed in a context that ended")
	}
}

func BenchmarkFor(b *testing.B)   { benchmark(b, For) }
func BenchmarkExact(b *testing.B) { benchmark(b, Exact) }

// benchmark takes as long per operation as a pause of 0.3 ms.
func benchmark(b *testing.B, wait func(context.Context, time.Duration) bool) {
	for b.Loop() {
		wait(b.Context(), 300*time.Microsecond)
	}
}
