package bench

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Each key has just the entries asked for, whatever counts them, and they lie
// where some batches would merge them (600 a minute) and where none would.
func TestFillGivesEachKeyItsEntries(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		for _, algorithm := range windows.Algorithms {
			for _, n := range []struct{ keys, entries int }{{40, 1}, {40, 37}, {3, 600}} {
				t.Run(fmt.Sprintf("%s/keys=%d/entries=%d", algorithm, n.keys, n.entries), func(t *testing.T) {
					cfg := Config{Keys: n.keys, Entries: n.entries, Partitions: 4}.withDefaults()
					r, err := newRoom(&cfg, c, streamtest.Prefix(t), algorithm)
					testkit.Must(t, err)
					t.Cleanup(func() { _ = measure.Remove(t.Context(), c, r.keys.Prefix+":") })
					// The end of a whole minute, so that an algorithm that counts by
					// whole minutes has all entries in one.
					end := time.Now().Truncate(time.Minute).UnixMilli() - 1
					r.counter.Now = func() int64 { return end }
					last := 0.0
					if err := r.fill(t.Context(), end, n.entries, func(done float64) { last = done }); err != nil {
						t.Fatal(err)
					}
					for _, key := range r.names {
						st, err := r.counter.Peek(t.Context(), r.plan(), key)
						testkit.Must(t, err)
						if used := st.Windows[0].Used; used != int64(n.entries) {
							t.Errorf("%s has used %d, want %d", key, used, n.entries)
						}
						if algorithm == windows.DefaultAlgorithm {
							if got := c.XLen(t.Context(), r.keys.Counter(r.keys.Partition(key), "log",
								key)).Val(); got != int64(n.entries) {
								t.Errorf("the log of %s has %d entries, want %d", key, got, n.entries)
							}
						}
					}
					if last != 1 {
						t.Errorf("it said that %.3f are done, want 1", last)
					}
					if left := keysLike(t, c, r.keys.Prefix+":*:events"); len(left) > 0 {
						t.Errorf("it left %v", left)
					}
				})
			}
		}
	})
}

func TestFillSaysWhatItWeighs(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		cfg := Config{Keys: 2000, Entries: 3, Partitions: 2}.withDefaults()
		r, err := newRoom(&cfg, c, streamtest.Prefix(t), windows.DefaultAlgorithm)
		testkit.Must(t, err)
		// What was there before weighs nothing. It is made over there: a long
		// command would leave a buffer that shrinks meanwhile.
		ballast := r.keys.Prefix + ":ballast"
		testkit.Must(t, c.SetRange(t.Context(), ballast, 32<<20, "x").Err())
		clients := func() string { return c.Info(t.Context(), "clients").Val() }
		connected := regexp.MustCompile(`connected_clients:\d+`)
		before := connected.FindString(clients())
		mem, err := r.fillAndWeigh(t.Context(), func(float64) {})
		testkit.Must(t, err)
		streamtest.Eventually(t, 10*time.Second, "the connections of the fill are closed", func() (bool, string) {
			now := connected.FindString(clients())
			return now == before, now
		})
		if told := c.Info(t.Context(), "memory").Err() == nil; !told {
			if mem.perKey != nil || mem.perEntry != nil {
				t.Errorf("the embedded server tells no memory, and it was %v", mem)
			}
		} else if mem.perKey == nil || *mem.perKey < 100 || *mem.perKey > 10_000 || *mem.perEntry != *mem.perKey/3 {
			t.Errorf("a key of three entries weighs %v, and one of them %v", figure(mem.perKey, "%f"),
				figure(mem.perEntry, "%f"))
		}
		if left := keysLike(t, c, r.keys.Prefix+"w*"); len(left) > 0 {
			t.Errorf("the trial left %d keys", len(left))
		}
		testkit.Must(t, measure.Remove(t.Context(), c, r.keys.Prefix+":"))
		if left := keysLike(t, c, r.keys.Prefix+"*"); len(left) > 0 {
			t.Errorf("clean left %d keys", len(left))
		}
	})
}
