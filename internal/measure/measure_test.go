package measure_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func TestWhatAServerTells(t *testing.T) {
	ctx, c := t.Context(), streamtest.Connect(t, streamtest.OwnRedis(t).Addr())
	before, err := measure.CPU(ctx, c)
	testkit.Must(t, err)
	memory, err := measure.Memory(ctx, c)
	testkit.Must(t, err)
	testkit.Must(t, c.Set(ctx, "large", strings.Repeat("x", 10<<20), 0).Err())
	if err := c.Eval(ctx, "for i = 1, 100000 do redis.sha1hex('x') end", nil).Err(); err != nil &&
		!errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	if after, err := measure.CPU(ctx, c); err != nil || after <= before {
		t.Errorf("CPU %v, then %v, %v", before, after, err)
	}
	if n, err := measure.Memory(ctx, c); err != nil || n < memory+10<<20 {
		t.Errorf("memory %d, then %d, %v", memory, n, err)
	}
}

// A server that does not answer is an error, and not one that keeps a figure to itself.
func TestWhatAServerDoesNotTell(t *testing.T) {
	if n, err := measure.CPU(t.Context(), streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())); !errors.Is(err,
		measure.ErrNotTold) {
		t.Errorf("CPU %v, %v", n, err)
	}
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer gone.Close()
	if _, err := measure.CPU(t.Context(), gone); err == nil || errors.Is(err, measure.ErrNotTold) {
		t.Errorf("CPU of no server: %v", err)
	}
}

func TestRemove(t *testing.T) {
	ctx, c := t.Context(), streamtest.Connect(t, streamtest.Redis(t))
	prefix := streamtest.Prefix(t)
	for i := range 2500 {
		testkit.Must(t, c.Set(ctx, fmt.Sprintf("%s-a-%d", prefix, i), 1, 0).Err())
	}
	testkit.Must(t, c.Set(ctx, prefix+"-b", 1, 0).Err())
	testkit.Must(t, measure.Remove(ctx, c, prefix+"-a-"))
	if left := c.Keys(ctx, prefix+"*").Val(); len(left) != 1 || left[0] != prefix+"-b" {
		t.Errorf("left: %v", left)
	}
}
