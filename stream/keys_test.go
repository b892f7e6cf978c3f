package stream_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// The numbers are those of zlib's crc32, in any language.
func TestPartition(t *testing.T) {
	k := newKeys(t, 16)
	for key, want := range map[string]int{
		"user:42": 6, "a": 3, "user": 9, "é": 14,
		"{a}:x": 3, "b{a}c": 3, "x{a}": 3, "{user}:1": 9, "{user}:2": 9, // the tag
		"{}": 3, "{}a": 6, "x{}{a}": 6, "{a": 12, "a}": 8, "}a{": 3, // no tag: the whole key
	} {
		if got := k.Partition(key); got != want {
			t.Errorf("%q is in partition %d, want %d", key, got, want)
		}
	}
	for partitions, want := range map[int]int{1: 0, 2: 0, 3: 1, 16: 6, 4096: 3462} {
		if got := newKeys(t, partitions).Partition("user:42"); got != want {
			t.Errorf("user:42 of %d partitions is in %d, want %d", partitions, got, want)
		}
	}
}

func TestNewKeys(t *testing.T) {
	says := func(prefix string, partitions int, want string) {
		t.Helper()
		_, err := stream.NewKeys(prefix, partitions)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("NewKeys(%q, %d): error %v, want it to say %q", prefix, partitions, err, want)
		}
	}
	for _, good := range []string{"sc", "0", "a_b-c", strings.Repeat("a", 32)} {
		says(good, 16, "")
		says(good, 4096, "")
	}
	for _, bad := range []string{"", "SC", "-a", "_a", "a.b", "a:b", "a{1}", "a*", "a\n", strings.Repeat("a", 33)} {
		says(bad, 16, fmt.Sprintf("prefix %q", bad))
	}
	says("sc", 0, "partitions 0")
	says("sc", 4097, "partitions 4097: expected 1 to 4096")
}

// The names are a contract with producers in other languages.
func TestKeyNames(t *testing.T) {
	k, err := stream.NewKeys("sc", 16)
	testkit.Must(t, err)
	for got, want := range map[string]string{
		k.Events(3):                   "sc:{3}:events",
		k.Counter(3, "log", "user:1"): "sc:{3}:log:user:1",
		k.Levels(15):                  "sc:{15}:levels",
		k.Due(0):                      "sc:{0}:due",
		k.Outbox(0):                   "sc:{0}:outbox",
		k.Dead(0):                     "sc:{0}:dead",
		k.Relay(0):                    "sc:{0}:relay",
		k.Meta():                      "sc:meta",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

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

		testkit.Must(t, c.Set(ctx, free.Meta(), "mine", 0).Err())
		if err := stream.CheckMeta(ctx, c, free); err == nil || errors.Is(err, stream.ErrMismatch) ||
			!strings.Contains(err.Error(), free.Meta()) {
			t.Errorf("a foreign key: error %v, want one that names %s and is no mismatch", err, free.Meta())
		}
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
