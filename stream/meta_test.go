package stream_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestCheckMeta(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 16)
		testkit.Must(t, stream.CheckMeta(ctx, c, k))
		testkit.Must(t, stream.CheckMeta(ctx, c, k)) // a second process

		other, err := stream.NewKeys(k.Prefix, 8)
		testkit.Must(t, err)
		err = stream.CheckMeta(ctx, c, other)
		if !errors.Is(err, stream.ErrMismatch) || !strings.Contains(err.Error(), "16") ||
			!strings.Contains(err.Error(), "8") {
			t.Errorf("8 partitions where there are 16: error %v, want a mismatch that says both", err)
		}
		testkit.Must(t, stream.CheckMeta(ctx, c, k)) // the refused one changed nothing

		for _, version := range []string{"2", "x"} {
			testkit.Must(t, c.HSet(ctx, k.Meta(), "version", version).Err())
			err = stream.CheckMeta(ctx, c, k)
			if !errors.Is(err, stream.ErrMismatch) || !strings.Contains(err.Error(), "version="+version) ||
				!strings.Contains(err.Error(), "with 1") {
				t.Errorf("version %s: error %v, want a mismatch that says both", version, err)
			}
		}

		free := newKeys(t, 8)
		testkit.Must(t, stream.CheckMeta(ctx, c, free)) // another prefix is independent
	})
}

// If processes with different numbers start at the same time, one wins, and only
// processes with its number continue.
func TestCheckMetaTogether(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		prefix := newKeys(t, 1).Prefix
		errs := make([]error, 8)
		var all sync.WaitGroup
		for i := range errs {
			k, err := stream.NewKeys(prefix, 1+i%4)
			testkit.Must(t, err)
			all.Go(func() { errs[i] = stream.CheckMeta(t.Context(), c, k) })
		}
		all.Wait()
		numbers := map[int]bool{}
		for i, err := range errs {
			switch {
			case err == nil:
				numbers[1+i%4] = true
			case !errors.Is(err, stream.ErrMismatch):
				t.Errorf("with %d partitions: error %v, want a mismatch", 1+i%4, err)
			}
		}
		if len(numbers) != 1 {
			t.Errorf("processes go on with these numbers of partitions: %v, want one", numbers)
		}
	})
}

func TestCheckMetaOfSomethingElse(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k := newKeys(t, 16)
		testkit.Must(t, c.Set(t.Context(), k.Meta(), "mine", 0).Err())
		if err := stream.CheckMeta(t.Context(), c, k); err == nil || errors.Is(err, stream.ErrMismatch) ||
			!strings.Contains(err.Error(), k.Meta()) {
			t.Errorf("error %v, want one that names %s and is no mismatch", err, k.Meta())
		}
	})
}
