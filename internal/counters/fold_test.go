package counters_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
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

// One of the partitions that are folded together has a string in place of one of its keys. The call fails before it has
// acknowledged or counted anything. If the string is in place of the events, the events of the other partitions are
// counted once, with their transitions. When the key is back, everything is counted once.
func TestAKeyOfAnotherTypeFailsAFold(t *testing.T) {
	for _, what := range []string{"levels", "due", "outbox", "ids", "events"} {
		for bad := range 4 {
			t.Run(fmt.Sprint(what, " of ", bad), func(t *testing.T) {
				eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) { s.foldWithout(t, what, bad) })
			})
		}
	}
}

// foldWithout folds events of all partitions. The bad one has a string in place of one of its keys.
func (s *store) foldWithout(t *testing.T, what string, bad int) {
	ctx, name := t.Context(), fmt.Sprintf("%s:{%d}:%s", s.keys.Prefix, bad, what)
	var batches []counters.Batch
	want := make([][]string, s.keys.Partitions) // the transitions that are not published yet
	for p := range s.keys.Partitions {
		key := s.keyIn(p)
		var events []counters.Event
		for _, count := range []int64{3, 3, 2, 1, 1} { // a group of two, one of one, and two with ids
			events = append(events, counters.Event{Key: key, Ms: start, Count: count})
		}
		list := s.append(t, events...)[p]
		list[3].ProducerID, list[4].ProducerID = "a", "b"
		batches = append(batches, counters.Batch{Partition: p, Events: list})
		for _, level := range []string{"raised api/%s 80%%", "raised api/%s 95%%", "raised api/%s 100%%",
			"throttled api/%s 100%%"} {
			want[p] = append(want[p], fmt.Sprintf(level, key)+" used 10")
		}
	}
	_ = s.redis.Rename(ctx, name, name+":kept").Err() // there may be none yet
	testkit.Must(t, s.redis.Set(ctx, name, "x", 0).Err())
	before, counted := s.contents(t), int64(0)
	for range 2 {
		_, _, err := s.store.Fold(ctx, s.rules, batches...)
		if err == nil || what == "events" && !redisclient.IsWrongType(err) {
			t.Fatalf("the fold answers %v", err)
		}
		if what != "events" {
			if diff := cmp.Diff(before, s.contents(t)); diff != "" {
				t.Fatalf("it has written:\n%s", diff)
			}
			continue
		}
		if counted = 15; used(t, s, batches[bad].Events[0].Key) != 0 {
			t.Error("the partition without events has a count")
		}
		waits := want[bad]
		want[bad] = nil
		s.expect(slices.Concat(want...)...)
		clear(want)
		want[bad] = waits
	}
	testkit.Must(t, s.redis.Del(ctx, name).Err())
	_ = s.redis.Rename(ctx, name+":kept", name).Err()
	f, _, err := s.store.Fold(ctx, s.rules, batches...)
	if err != nil || f.Folded != 20-counted || f.AlreadyCounted != counted {
		t.Fatalf("with the key back: %+v, %v", f, err)
	}
	for _, b := range batches {
		if n := used(t, s, b.Events[0].Key); n != 10 {
			t.Errorf("partition %d has counted %d, want 10", b.Partition, n)
		}
	}
	s.expect(slices.Concat(want...)...)
}
