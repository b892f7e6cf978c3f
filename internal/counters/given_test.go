package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// given appends events with ids, as producers that retry do, and returns them as read.
func (s *store) given(t testing.TB, key string, ids ...string) []counters.Event {
	t.Helper()
	events := make([]counters.Event, len(ids))
	for i := range ids {
		events[i] = counters.Event{Key: key, Ms: s.clock.ms, Count: 3}
	}
	batch := s.append(t, events...)[s.keys.Partition(key)]
	for i, id := range ids {
		batch[i].ProducerID = id
	}
	return batch
}

// An event that was appended twice with the same id counts once: in one batch, in two
// batches, and if it is folded again.
func TestRepeatedEventsCountOnce(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		p := s.keys.Partition("k")
		batch := s.given(t, "k", "a", "b", "a", "", "c d", "")
		if f := s.foldBatch(t, p, batch); f.Folded != 5 || f.Duplicate != 1 || f.AlreadyCounted != 0 {
			t.Fatalf("%+v", f)
		}
		if f := s.foldBatch(t, p, batch); f.Folded != 0 || f.Duplicate != 0 || f.AlreadyCounted != 6 {
			t.Fatalf("folded again: %+v", f)
		}
		if f := s.foldBatch(t, p, s.given(t, "k", "b", "e", "c", "c d")); f.Folded != 2 || f.Duplicate != 2 {
			t.Fatalf("another batch: %+v", f)
		}
		// The same id of another key counts.
		other := "k{k}"
		if f := s.foldBatch(t, p, s.given(t, other, "a")); f.Folded != 1 {
			t.Fatalf("another key: %+v", f)
		}
		if n := used(t, s, "k"); n != 7*3 {
			t.Fatalf("used %d, expected 21", n)
		}
		pending, err := s.redis.XPending(context.Background(), s.keys.Events(p), eventlog.Group).Result()
		if err != nil || pending.Count != 0 {
			t.Fatalf("pending %+v, %v", pending, err)
		}
	})
}

// Ids are remembered for the retention, and then removed, so that they do not
// grow forever.
func TestIdsAreForgotten(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		ctx, p := context.Background(), s.keys.Partition("k")
		s.store.Remember = 10 * time.Minute
		s.foldBatch(t, p, s.given(t, "k", "a"))
		for i := range 4 { // folds forget what is old
			s.clock.ms += 140_000
			s.foldBatch(t, p, s.given(t, "k", fmt.Sprint("between ", i)))
		}
		s.clock.ms += 39_999
		if f := s.foldBatch(t, p, s.given(t, "k", "a")); f.Duplicate != 1 {
			t.Fatalf("within the retention: %+v", f)
		}
		s.clock.ms += 2
		s.foldBatch(t, p, s.given(t, "k", "b"))
		if f := s.foldBatch(t, p, s.given(t, "k", "a")); f.Folded != 1 {
			t.Fatalf("after it: %+v", f)
		}
		for i := range 50 {
			s.clock.ms += 60_000
			s.foldBatch(t, p, s.given(t, "k", fmt.Sprint(i)))
		}
		if n := s.redis.ZCard(ctx, s.keys.IDs(p)).Val(); n > 12 {
			t.Fatalf("%d ids are remembered", n)
		}
		if ttl := s.redis.PTTL(ctx, s.keys.IDs(p)).Val(); ttl <= 9*time.Minute || ttl > 10*time.Minute {
			t.Fatalf("they end in %v", ttl)
		}
	})
}

// The ids of events that are folded together are stored in their events' partitions, and removed there.
func TestIdsOfPartitionsFoldedTogether(t *testing.T) {
	eachRedis(t, rulesOf(t, wide(nil)), func(t *testing.T, s *store) {
		s.store.Remember = 10 * time.Minute
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
			s.clock.ms += 11 * time.Minute.Milliseconds()
		}
	})
}
