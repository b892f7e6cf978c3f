package counters_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func used(t testing.TB, s *store, key string) int64 {
	t.Helper()
	return s.peek(key).Windows[0].Used
}

func (s *store) foldBatch(t testing.TB, p int, events []counters.Event) counters.Folded {
	t.Helper()
	f, _, err := s.store.Fold(context.Background(), s.rules, counters.Batch{Partition: p, Events: events})
	testkit.Must(t, err)
	return f
}

// contents returns all keys of a store with their values, without its prefix.
func (s *store) contents(t testing.TB) map[string]string {
	t.Helper()
	ctx, all := context.Background(), map[string]string{}
	for _, name := range s.redis.Keys(ctx, s.keys.Prefix+":*").Val() {
		short := strings.TrimPrefix(name, s.keys.Prefix)
		switch kind := s.redis.Type(ctx, name).Val(); kind {
		case "string":
			all[short] = s.redis.Get(ctx, name).Val()
		case "hash":
			all[short] = fmt.Sprint(s.redis.HGetAll(ctx, name).Val())
		case "zset":
			all[short] = fmt.Sprint(s.redis.ZRangeWithScores(ctx, name, 0, -1).Val())
		case "stream":
			all[short] = fmt.Sprint(s.redis.XRange(ctx, name, "-", "+").Val(), s.redis.XInfoGroups(ctx, name).Val())
		default:
			t.Fatalf("%s is a %s", name, kind)
		}
	}
	delete(all, ":meta")
	return all
}

// If one partition has a key of another type, the call fails before it has acknowledged or
// counted anything in any partition. This is so for each key of the partition (except its events,
// see TestFoldWithoutTheEventsOfAPartition), and for each place of the partition among the others.
func TestAKeyOfAnotherTypeFailsTheWholeCall(t *testing.T) {
	ctx := context.Background()
	for _, what := range []string{"levels", "due", "outbox", "ids"} {
		t.Run(what, func(t *testing.T) {
			eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
				for bad := range s.keys.Partitions {
					var events []counters.Event
					for i := range 40 {
						events = append(events, counters.Event{Key: fmt.Sprintf("k%d-%d", bad, i), Ms: s.clock.ms,
							Count: 9})
					}
					read := s.append(t, events...)
					var batches []counters.Batch
					for p := range s.keys.Partitions {
						read[p][0].ProducerID = fmt.Sprint("id", bad)
						batches = append(batches, counters.Batch{Partition: p, Events: read[p]})
					}
					key := fmt.Sprintf("%s:{%d}:%s", s.keys.Prefix, bad, what)
					_ = s.redis.Rename(ctx, key, key+":kept").Err()
					testkit.Must(t, s.redis.Set(ctx, key, "x", 0).Err())
					before := s.contents(t)
					if f, _, err := s.store.Fold(ctx, s.rules, batches...); err == nil {
						t.Fatalf("no error: %+v", f)
					}
					for name, now := range s.contents(t) {
						if now != before[name] {
							t.Fatalf("it has written %s: %s, before %s", name, now, before[name])
						}
					}
					testkit.Must(t, s.redis.Del(ctx, key).Err())
					_ = s.redis.Rename(ctx, key+":kept", key).Err()
					for _, b := range batches {
						n := s.redis.XPending(ctx, s.keys.Events(b.Partition), eventlog.Group).Val().Count
						if n != int64(len(b.Events)) {
							t.Fatalf("%d events pending in %d of %d", n, b.Partition, len(b.Events))
						}
					}
					if f, _ := s.foldBatches(t, batches); f.Folded != 40 || f.AlreadyCounted != 0 {
						t.Fatalf("after the repair: %+v", f)
					}
				}
			})
		})
	}
}
