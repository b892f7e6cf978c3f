package counters_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func used(t testing.TB, s *store, key string) int64 {
	t.Helper()
	return s.peek(key).Windows[0].Used
}

func wide(change func(*windows.Rule)) *windows.Rule {
	return apiRule(func(r *windows.Rule) {
		r.Windows = []windows.Window{{Limit: 1_000_000_000_000, Per: time.Hour}}
		if change != nil {
			change(r)
		}
	})
}

func (s *store) foldBatch(t testing.TB, p int, events []counters.Event) counters.Folded {
	t.Helper()
	f, _, err := s.store.Fold(context.Background(), s.rules, counters.Batch{Partition: p, Events: events})
	testkit.Must(t, err)
	return f
}

func TestFoldMergesWithinTheResolution(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		rule := s.rules.Match("k") // resolution: 3.6 s
		s.fold(t, rule, counters.Event{Key: "k", Ms: start - 8000, Count: 1},
			counters.Event{Key: "k", Ms: start - 7000, Count: 1},
			counters.Event{Key: "k", Ms: start - 4400, Count: 1}, counters.Event{Key: "k", Ms: start - 4399, Count: 1})
		var got []string
		for _, e := range s.entries("k") {
			got = append(got, fmt.Sprintf("%s %s/%s", e.ID, e.Values["count"], e.Values["total"]))
		}
		want := fmt.Sprintf("%d-0 3/3, %d-0 1/4", start-4400, start-4399)
		if strings.Join(got, ", ") != want {
			t.Fatalf("log %v, expected %s", got, want)
		}
	})
}

func TestFoldTellsUnmatched(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Match = "user:*" })), func(t *testing.T, s *store) {
		for p, batch := range s.append(t, counters.Event{Key: "other", Ms: start, Count: 1}) {
			f, unmatched, err := s.store.Fold(context.Background(), s.rules,
				counters.Batch{Partition: p, Events: batch})
			if err != nil || !cmp.Equal(f, counters.Folded{}) || !cmp.Equal(unmatched, [][]string{{batch[0].ID}}) {
				t.Fatalf("%+v, %v, %v", f, unmatched, err)
			}
		}
	})
}

// Somebody deleted the newest entry of a log. The stream's last ID is still that
// entry's, and the count is written anyway.
func TestFoldAfterTheNewestEntryWasDeleted(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		ctx := context.Background()
		log := s.keys.Counter(s.keys.Partition("k"), "log", "k")
		s.fold(t, nil, counters.Event{Key: "k", Ms: start - 100, Count: 1})
		s.fold(t, nil, counters.Event{Key: "k", Ms: start, Count: 1})
		testkit.Must(t, s.redis.XDel(ctx, log, fmt.Sprintf("%d-0", start)).Err())
		for p, batch := range s.append(t, counters.Event{Key: "k", Ms: start, Count: 5}) {
			s.clock.ms = start
			batch[0].Ms = start - 50
			if f := s.foldBatch(t, p, batch); f.Folded != 1 {
				t.Fatalf("%+v", f)
			}
		}
		last, err := s.redis.XRevRangeN(ctx, log, "+", "-", 1).Result()
		if err != nil || len(last) != 1 || last[0].Values["total"] != "6" {
			t.Fatalf("newest entry %v, %v", last, err)
		}
	})
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
			all[short] = fmt.Sprint(s.redis.XRange(ctx, name, "-", "+").Val())
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
	for what, name := range map[string]func(s *store, p int) string{
		"levels": func(s *store, p int) string { return s.keys.Levels(p) },
		"due":    func(s *store, p int) string { return s.keys.Due(p) },
		"outbox": func(s *store, p int) string { return s.keys.Outbox(p) },
		"ids":    func(s *store, p int) string { return s.keys.IDs(p) },
	} {
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
					key := name(s, bad)
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
					if f := s.foldBatches(t, batches); f.Folded != 40 || f.AlreadyCounted != 0 {
						t.Fatalf("after the repair: %+v", f)
					}
				}
			})
		})
	}
}

// given appends events with ids, as producers that retry do, and returns them as read.
func (s *store) given(t testing.TB, key string, ids ...string) []counters.Event {
	t.Helper()
	var events []counters.Event
	for _, id := range ids {
		events = append(events, counters.Event{Key: key, Ms: s.clock.ms, Count: 3, Fields: map[string]any{"id": id}})
	}
	return s.append(t, events...)[s.keys.Partition(key)]
}

// A copy of an event may be appended a retention after the event, and workers may be a retention behind. So ids are
// remembered for two retentions, and then removed, so that they do not grow forever.
func TestIdsAreForgotten(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		ctx, p := context.Background(), s.keys.Partition("k")
		s.store.Retention = 10 * time.Minute
		s.foldBatch(t, p, s.given(t, "k", "a"))
		for i := range 4 { // folds forget what is old
			s.clock.ms += 140_000
			s.foldBatch(t, p, s.given(t, "k", fmt.Sprint("between ", i)))
		}
		s.clock.ms += 39_999
		late := s.given(t, "k", "a")
		s.clock.ms += 599_999
		s.foldBatch(t, p, s.given(t, "k", "c"))
		if f := s.foldBatch(t, p, late); f.Duplicate != 1 {
			t.Fatalf("appended within the retention, counted late: %+v", f)
		}
		s.clock.ms += 3
		s.foldBatch(t, p, s.given(t, "k", "b"))
		if f := s.foldBatch(t, p, s.given(t, "k", "a")); f.Folded != 1 {
			t.Fatalf("after it: %+v", f)
		}
		for i := range 50 {
			s.clock.ms += 60_000
			s.foldBatch(t, p, s.given(t, "k", fmt.Sprint(i)))
		}
		if n := s.redis.ZCard(ctx, s.keys.IDs(p)).Val(); n > 22 {
			t.Fatalf("%d ids are remembered", n)
		}
		if ttl := s.redis.PTTL(ctx, s.keys.IDs(p)).Val(); ttl <= 19*time.Minute || ttl > 20*time.Minute {
			t.Fatalf("they end in %v", ttl)
		}
	})
}

// The ids of events that are folded together are stored in their events' partitions, and removed there.
func TestIdsOfPartitionsFoldedTogether(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		s.store.Retention = 10 * time.Minute
		for round := range 2 {
			var batches []counters.Batch
			for p := range 2 {
				events := s.given(t, s.keyIn(p), fmt.Sprint("a", round), fmt.Sprint("b", round))
				batches = append(batches, counters.Batch{Partition: p, Events: events})
			}
			if f := s.foldBatches(t, batches); f.Folded != 4 {
				t.Fatalf("%+v", f)
			}
			for p := range 2 {
				if n := s.redis.ZCard(t.Context(), s.keys.IDs(p)).Val(); n != 2 {
					t.Errorf("round %d: partition %d remembers %d ids, expected 2", round, p, n)
				}
			}
			s.clock.ms += 21 * time.Minute.Milliseconds()
		}
	})
}
