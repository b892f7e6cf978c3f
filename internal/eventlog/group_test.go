package eventlog_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

const noBlock = -time.Second

// newReader returns a Reader, and creates its groups.
func newReader(t *testing.T, c *redis.Client, k *stream.Keys, consumer string) *eventlog.Reader {
	t.Helper()
	r := eventlog.NewReader(c, k, consumer, k.All())
	testkit.Must(t, r.CreateGroups(t.Context()))
	return r
}

// xadd appends one event as a producer in another language does, and returns its ID.
func xadd(t *testing.T, c *redis.Client, k *stream.Keys, p int, key string) string {
	t.Helper()
	id, err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: k.Events(p), Values: []any{"key", key}}).Result()
	testkit.Must(t, err)
	return id
}

// read returns the keys that Read returns: "partition:key", in order.
func read(t *testing.T, r *eventlog.Reader, block time.Duration) []string {
	t.Helper()
	return readLater(t, r, block)()
}

// readLater starts a read and returns a function that waits for its result.
func readLater(t *testing.T, r *eventlog.Reader, block time.Duration) func() []string {
	var batches []eventlog.Batch
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		batches, err = r.Read(t.Context(), 100, block)
	}()
	return func() (got []string) {
		t.Helper()
		<-done
		testkit.Must(t, err)
		for _, b := range batches {
			got = append(got, words(t, b)...)
		}
		return got
	}
}

func words(t *testing.T, b eventlog.Batch) []string {
	t.Helper()
	var got []string
	for _, m := range b.Messages {
		e, err := m.Decode()
		testkit.Must(t, err)
		got = append(got, fmt.Sprintf("%d:%s", b.Partition, e.Key))
	}
	return got
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestReadSeveralPartitions(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k := newKeys(t, 3)
		xadd(t, c, k, 2, "before the group")
		r := newReader(t, c, k, "w1")
		testkit.Must(t, r.CreateGroups(t.Context())) // another worker did
		xadd(t, c, k, 0, "a")
		xadd(t, c, k, 2, "b")
		xadd(t, c, k, 0, "c")
		got := read(t, r, time.Second)
		// partitions come in any order
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:2], b[:2]) })
		expect(t, "first read", got, "0:a", "0:c", "2:before the group", "2:b")
		expect(t, "second read", read(t, r, noBlock))
	})
}

func awaitBlockedReader(t *testing.T, c *redis.Client) {
	t.Helper()
	streamtest.Eventually(t, "a reader waits", func() (bool, string) {
		info := c.Info(t.Context(), "clients").Val()
		return strings.Contains(info, "blocked_clients:1"), info
	})
}

// If a stream was removed, its group was removed with it. Events that are appended
// before and after the next read must be read: the new group starts at the beginning.
func TestReadAfterTheStreamIsGone(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k := newKeys(t, 2)
		r := newReader(t, c, k, "w1")
		xadd(t, c, k, 0, "a")
		xadd(t, c, k, 1, "b")
		read(t, r, noBlock)
		testkit.Must(t, c.Del(t.Context(), k.Events(0)).Err())
		expect(t, "with no stream", read(t, r, noBlock))
		xadd(t, c, k, 0, "after the read")
		expect(t, "then", read(t, r, noBlock), "0:after the read")

		testkit.Must(t, c.Del(t.Context(), k.Events(0)).Err())
		xadd(t, c, k, 0, "before the read")
		expect(t, "with a stream and no group", read(t, r, noBlock))
		expect(t, "then", read(t, r, noBlock), "0:before the read")

		testkit.Must(t, c.Del(t.Context(), k.Events(0)).Err())
		b, next, err := r.Claim(t.Context(), 0, 0, "0-0", 10)
		if err != nil || len(b.Messages) != 0 || next != "0-0" {
			t.Errorf("claimed %v, cursor %s, error %v; want nothing", b.Messages, next, err)
		}
		xadd(t, c, k, 0, "after the claim")
		expect(t, "after a claim", read(t, r, noBlock), "0:after the claim")
	})
}

// The same while a reader waits: Redis 7.0 answers UNBLOCKED, later versions NOGROUP. A reader that waits gets what
// comes.
func TestReadWhileTheStreamGoes(t *testing.T) {
	c, k := streamtest.Connect(t, streamtest.OwnRedis(t).Addr()), newKeys(t, 2)
	r := newReader(t, c, k, "w1")
	answer := readLater(t, r, time.Minute)
	awaitBlockedReader(t, c)
	testkit.Must(t, c.Del(t.Context(), k.Events(1)).Err())
	expect(t, "the waiting reader", answer())
	answer = readLater(t, r, time.Minute)
	awaitBlockedReader(t, c)
	xadd(t, c, k, 1, "a")
	expect(t, "then", answer(), "1:a")
}

func TestClaim(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 2)
		dead, heir := newReader(t, c, k, "w1"), newReader(t, c, k, "w2")
		for _, key := range []string{"a", "b", "c"} {
			xadd(t, c, k, 1, key)
		}
		read(t, dead, noBlock)

		b, next, err := heir.Claim(ctx, 1, time.Hour, "0-0", 10)
		testkit.Must(t, err)
		if len(b.Messages) != 0 || next != "0-0" {
			t.Errorf("claimed %v before its time (cursor %s)", words(t, b), next)
		}

		b, next, err = heir.Claim(ctx, 1, 0, "0-0", 2)
		testkit.Must(t, err)
		expect(t, "first claim", words(t, b), "1:a", "1:b")
		if next == "0-0" {
			t.Fatal("the cursor says that all were seen after 2 of 3")
		}
		b, next, err = heir.Claim(ctx, 1, 0, next, 2)
		testkit.Must(t, err)
		expect(t, "second claim", words(t, b), "1:c")
		if next != "0-0" {
			t.Errorf("cursor %s after the last, want 0-0", next)
		}
		if held := c.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: k.Events(1), Group: eventlog.Group, Start: "-",
			End: "+", Count: 10, Consumer: "w2"}).Val(); len(held) != 3 {
			t.Errorf("the heir holds %v, want all three", held)
		}
		b, _, err = heir.Claim(ctx, 0, 0, "0-0", 10)
		testkit.Must(t, err)
		expect(t, "claim of another partition", words(t, b))
	})
}

// A failure that cannot be fixed is an error with its place, not an empty read.
func TestReaderErrors(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 1)
		testkit.Must(t, c.Set(ctx, k.Events(0), "no stream", 0).Err())
		r := eventlog.NewReader(c, k, "w1", k.All())
		_, readErr := r.Read(ctx, 1, noBlock)
		_, _, claimErr := r.Claim(ctx, 0, 0, "0-0", 1)
		for what, err := range map[string]error{"create": r.CreateGroups(ctx), "read": readErr, "claim": claimErr} {
			if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("%s on a key that is no stream: error %v, want one with WRONGTYPE", what, err)
			}
		}
	})
}

// Only partitions with pending events are claimed from, and those where this is unknown.
func TestMayPend(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 5)
		r := newReader(t, c, k, "a")
		other := eventlog.NewReader(c, k, "b", k.All())
		expect := func(want ...int) {
			t.Helper()
			if got := r.MayPend(ctx, k.All()); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		}
		expect()
		xadd(t, c, k, 1, "unread")
		expect()
		id := xadd(t, c, k, 2, "k")
		read(t, other, noBlock)
		expect(1, 2)
		testkit.Must(t, c.XAck(ctx, k.Events(2), eventlog.Group, id).Err())
		testkit.Must(t, c.XGroupDestroy(ctx, k.Events(3), eventlog.Group).Err())
		testkit.Must(t, c.Set(ctx, k.Events(4), "foreign", 0).Err())
		testkit.Must(t, c.Del(ctx, k.Events(0)).Err())
		expect(0, 1, 3, 4)
	})
}

// If two fields have one name, the last one counts, as docs/producers.md says.
func TestReadTwoFieldsOfOneName(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		k := newKeys(t, 1)
		r := newReader(t, c, k, "a")
		testkit.Must(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: k.Events(0),
			Values: []any{"key", "a", "count", 1, "id", "x", "count", 2, "key", "b", "id", "y"}}).Err())
		batches, err := r.Read(t.Context(), 1, noBlock)
		testkit.Must(t, err)
		if e, err := batches[0].Messages[0].Decode(); err != nil || e.Key != "b" || e.Count != 2 || e.ID != "y" {
			t.Errorf("%+v, error %v; want the last key, count and id", e, err)
		}
	})
}

// After a reply that was too large or too slow, a read brings half as many events, and then one more each time. Eight
// pending events are too much for one reply here, so Own brings fewer at a time.
func TestReadsOfLargeEventsBringFewer(t *testing.T) {
	both := func(test func(*testing.T, *redis.Client, func(*redis.Options))) func(*testing.T, *redis.Client) {
		return func(t *testing.T, c *redis.Client) {
			t.Run("too large", func(t *testing.T) { test(t, c, streamtest.Tight) })
			t.Run("too slow", func(t *testing.T) { test(t, c, streamtest.Slow) })
		}
	}
	streamtest.EachRedis(t, both(func(t *testing.T, c *redis.Client, limit func(*redis.Options)) {
		ctx, k := t.Context(), newKeys(t, 1)
		r := newReader(t, streamtest.Connect(t, c.Options().Addr, limit), k, "a")
		for i := range 30 {
			values := []any{"key", i, "pad", strings.Repeat("x", 13_000)}
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(0), Values: values}).Err())
		}
		if _, err := r.Read(ctx, 12, noBlock); !errors.Is(err, eventlog.ErrReplyLost) {
			t.Fatalf("error %v, expected %v", err, eventlog.ErrReplyLost)
		}
		own, cursor, err := r.Own(ctx, 0, "0-0")
		testkit.Must(t, err)
		if got := words(t, own); len(got) != 12 || got[0] != "0:0" || got[11] != "0:11" || cursor != "0-0" {
			t.Errorf("own events %v, cursor %s", got, cursor)
		}
		for _, want := range []int{6, 7, 5} {
			batches, err := r.Read(ctx, 12, noBlock)
			testkit.Must(t, err)
			if n := len(batches[0].Messages); n != want {
				t.Errorf("%d events, expected %d", n, want)
			}
		}
	}))
}

// One call of Own brings a part of many events, and the next call the others.
func TestOwnBringsManyEventsInParts(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 1)
		r := newReader(t, c, k, "a")
		for i := range 250 {
			xadd(t, c, k, 0, fmt.Sprint(i))
		}
		_, err := r.Read(ctx, 250, noBlock)
		testkit.Must(t, err)
		cursor := "0-0"
		for _, part := range [][2]int{{0, 100}, {100, 200}, {200, 250}} {
			own, next, err := r.Own(ctx, 0, cursor)
			testkit.Must(t, err)
			got := words(t, own)
			if len(got) != part[1]-part[0] || got[0] != fmt.Sprint("0:", part[0]) ||
				(next == "0-0") != (part[1] == 250) {
				t.Fatalf("own events %v, cursor %s; expected those from %d to %d", got, next, part[0], part[1])
			}
			cursor = next
		}
	})
}

// A claim of large events ends when it holds enough of them, and the next goes on where it ended.
func TestClaimsOfLargeEventsBringFewer(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 1)
		r, pad := newReader(t, c, k, "a"), strings.Repeat("x", 9<<20)
		for i := range 9 {
			event := &redis.XAddArgs{Stream: k.Events(0), Values: []any{"key", i, "pad", pad}}
			testkit.Must(t, c.XAdd(ctx, event).Err())
			_, err := r.Read(ctx, 1, noBlock)
			testkit.Must(t, err)
		}
		for what, claim := range map[string]func(cursor string) (eventlog.Batch, string, error){
			"own":   func(cursor string) (eventlog.Batch, string, error) { return r.Own(ctx, 0, cursor) },
			"claim": func(cursor string) (eventlog.Batch, string, error) { return r.Claim(ctx, 0, 0, cursor, 100) },
		} {
			first, cursor, err := claim("0-0")
			testkit.Must(t, err)
			rest, end, err := claim(cursor)
			testkit.Must(t, err)
			if len(first.Messages) != 8 || len(rest.Messages) != 1 || end != "0-0" {
				t.Errorf("%s: %d events, then %d, cursors %s and %s", what, len(first.Messages), len(rest.Messages),
					cursor, end)
			}
		}
	})
}
