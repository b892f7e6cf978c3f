package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("waited %s, want 1m", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if For(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("waited %s with a context that ends after 1s", time.Since(began))
		}
	})
}

func TestBeforeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		if BeforeDeadline(ctx, 11*time.Second) || time.Since(began) != 0 {
			t.Errorf("waited %s where 2*11s of 20s is too late", time.Since(began))
		}
		if !BeforeDeadline(ctx, 10*time.Second) || time.Since(began) != 10*time.Second {
			t.Errorf("waited %s, want 10s", time.Since(began))
		}
		if !BeforeDeadline(context.Background(), time.Second) {
			t.Error("without a deadline it did not wait")
		}
	})
}
