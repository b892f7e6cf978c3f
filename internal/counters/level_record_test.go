package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

const lastID = "18446744073709551615-18446744073709551615"

// Somebody has added an entry with the greatest possible ID to the outbox, so it accepts no
// more entries. Transitions are written anyway, and the waiting transitions are kept.
func TestAnOutboxThatTakesNoMore(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Alerts = nil })), func(t *testing.T, s *store) {
		ctx := context.Background()
		outbox := s.keys.Outbox(s.keys.Partition("k"))
		s.check("k", 10)
		if err := s.redis.XAdd(ctx, &redis.XAddArgs{Stream: outbox, ID: lastID,
			Values: []any{"x", "y"}}).Err(); err != nil {
			t.Skip("this server does not take it") // the embedded Redis
		}
		if s.redis.XAdd(ctx, &redis.XAddArgs{Stream: outbox, Values: []any{"x", "y"}}).Err() == nil {
			t.Skip("this server takes more after it") // the embedded Redis
		}
		for p, batch := range s.append(t, counters.Event{Key: "k{k}", Ms: s.clock.ms, Count: 10}) {
			s.foldBatch(t, p, batch)
		}
		s.expect("raised api/k 100% used 10", "throttled api/k 100% used 10", "raised api/k{k} 100% used 10",
			"throttled api/k{k} 100% used 10")
	})
}

// No two transitions share an id, and the versions of a key only increase, whatever happens.
func TestVersionsGrow(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		ctx := t.Context()
		own, other := apiRule(nil), apiRule(func(r *windows.Rule) {
			r.Name, r.Alerts, r.Shadow = "other", []int{50},
				true
		})
		round, newest := 0, int64(0) // newest: the time of the newest event; IDs only increase
		rapid.Check(t, func(rt *rapid.T) {
			round++
			keys := []string{fmt.Sprint("a", round), fmt.Sprint("b", round)}
			var late []map[int][]counters.Event
			for range rapid.IntRange(1, 30).Draw(rt, "steps") {
				key := rapid.SampledFrom(keys).Draw(rt, "key")
				switch rapid.IntRange(0, 7).Draw(rt, "step") {
				case 0, 1:
					s.check(key, int64(rapid.IntRange(1, 10).Draw(rt, "cost")))
				case 2:
					newest = max(newest, s.clock.ms)
					late = append(late, s.append(t, counters.Event{Key: key, Ms: newest, Count: 5}))
				case 3:
					for _, batches := range late {
						for p, batch := range batches {
							s.foldBatch(t, p, batch)
						}
					}
					late = nil
				case 4:
					s.clock.ms += int64(rapid.IntRange(0, 12_000).Draw(rt, "ms"))
				case 5:
					s.clock.ms -= int64(rapid.IntRange(0, 12_000).Draw(rt, "ms"))
				case 6:
					s.rules = rulesOf(t, rapid.SampledFrom([]*windows.Rule{own, other}).Draw(rt, "rule"))
					p := s.keys.Partition(key)
					if _, _, err := s.store.Sweep(ctx, p, s.rules, []string{key}); err != nil {
						t.Fatal(err)
					}
				case 7:
					if _, err := s.Reset(ctx, s.rules.Match(key), key); err != nil {
						t.Fatal(err)
					}
				}
				s.sweep(t)
			}
			s.transitions(t)
		})
	})
}

// The last version of a key without a record is not lost with the records of other keys, and
// foreign data in its place counts as no version.
func TestVersionsOfKeysWithoutARecord(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Alerts = nil })), func(t *testing.T, s *store) {
		ctx := t.Context()
		const keys = 400 // of one partition
		for i := range keys {
			s.check(fmt.Sprint("{a}", i), 10)
		}
		s.after(10 * time.Second)
		s.transitions(t)
		if n := s.redis.HLen(ctx, s.keys.Levels(s.keys.Partition("{a}"))).Val(); n < 1 || n > 256 {
			t.Errorf("%d fields are left of %d keys, expected up to 256", n, keys)
		}
		s.clock.ms -= 10_000
		for i := range keys {
			s.check(fmt.Sprint("{a}", i), 1) // denied: the log still has 10 units
		}
		s.transitions(t)
		for p := range s.keys.Partitions {
			for field := range s.redis.HGetAll(ctx, s.keys.Levels(p)).Val() {
				if field[0] == '\n' {
					s.redis.HSet(ctx, s.keys.Levels(p), field, redis.NewScript("x").Hash())
				}
			}
		}
		s.check("new", 10)
		s.expect("raised api/new 100% used 10", "throttled api/new 100% used 10")
	})
}
