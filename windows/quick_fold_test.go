package windows_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// quickFoldRules have keys far from every level, keys that cross them, and keys that the script of the
// common fold does not take.
func quickFoldRules(t testing.TB) *windows.Rules {
	return rulesOf(t,
		&windows.Rule{Name: "far", Match: "far/*", Windows: []windows.Window{{Limit: 100_000, Per: time.Second}}},
		&windows.Rule{Name: "two", Match: "two/*", Alerts: []int{50}, Hold: time.Second,
			Windows: []windows.Window{{Limit: 12, Per: time.Second}, {Limit: 90, Per: 5 * time.Second}}},
		&windows.Rule{Name: "buckets", Match: "b/*", Algorithm: "sliding-buckets",
			Windows: []windows.Window{{Limit: 40, Per: time.Second}}})
}

// What the script of the common fold makes of events is to the last field what the general one does,
// whatever was done to the counters meanwhile.
func TestQuickFoldsAreTheGeneralOnes(t *testing.T) {
	eachRedis(t, quickFoldRules(t), func(t *testing.T, s *store) {
		other := s.twin(t)
		other.store.LeaveToGeneral(true)
		n := 0
		foldAlike(t, s, other, 400, func(random *rand.Rand) {
			n++
			key := []string{"far/", "two/"}[random.IntN(2)] + fmt.Sprint(random.IntN(5))
			what := random.IntN(9)
			s.meddle(t, what, key, n)
			other.meddle(t, what, key, n)
			switch what {
			case 5:
				s.clock.ms += 3000
			case 6:
				s.clock.ms -= 300
			}
		})
		if s.store.AnsweredQuick() == 0 || other.store.AnsweredQuick() > 0 {
			t.Errorf("%d events were folded quickly, and %d where none should", s.store.AnsweredQuick(),
				other.store.AnsweredQuick())
		}
	})
}

// meddle does something to a counter: another thing stands in its place, its newest entry is gone, it takes no
// more IDs, units of its key are reserved or given back, numbers are none.
func (s *store) meddle(t *testing.T, what int, key string, n int) {
	ctx, counter := t.Context(), s.keys.Counter(s.keys.Partition(key), "log", key)
	requests := []windows.Request{{Plan: s.rules.Match(key), Key: key, Cost: 2}}
	var err error
	switch what {
	case 0:
		err = s.redis.Set(ctx, counter, "x", 0).Err()
	case 1:
		if newest := s.redis.XRevRangeN(ctx, counter, "+", "-", 1).Val(); len(newest) > 0 {
			err = s.redis.XDel(ctx, counter, newest[0].ID).Err()
		}
	case 2:
		greatest := "18446744073709551615-18446744073709551615"
		_ = s.redis.XAdd(ctx, &redis.XAddArgs{Stream: counter, ID: greatest,
			Values: []any{"count", 1, "total", 5}}).Err()
	case 3:
		_, err = s.serve.Reserve(ctx, s.serve.ReservationID(fmt.Sprint("r", n), requests), time.Second, "x", requests)
	case 4:
		_, _, err = s.serve.Refund(ctx, requests[0].Plan, key, 1)
	case 7: // before one that reads well
		for i, total := range []string{"nan", "50"} {
			_ = s.redis.XAdd(ctx, &redis.XAddArgs{Stream: counter, ID: fmt.Sprintf("%d-%d", s.clock.ms, 100+i),
				Values: []any{"count", total, "total", total}}).Err()
		}
	}
	testkit.Must(t, err)
}

// The common fold is quick: events of all keys far from a level, of all partitions, in one call. A key
// near one is left to the general script, and then at once, but for a try now and then.
func TestTheCommonFoldIsQuick(t *testing.T) {
	eachRedis(t, quickFoldRules(t), func(t *testing.T, s *store) {
		quick := int64(0)
		fold := func(more int64, events ...windows.Event) {
			t.Helper()
			s.fold(t, nil, events...)
			if n := s.store.AnsweredQuick() - quick; n != more {
				t.Errorf("%d events were folded quickly, want %d", n, more)
			}
			quick = s.store.AnsweredQuick()
		}
		at := func(key string, count int64) windows.Event {
			return windows.Event{Key: key, Ms: s.clock.ms, Count: count}
		}
		for i := range 5 {
			s.clock.ms++
			fold(3, at("far/0", 1), at("far/1", int64(1+i)), at("two/0", 1))
		}
		fold(0, at("two/0", 1)) // reaches 50 %
		s.clock.ms += 10_000
		fold(2, at("far/2", 1), at("two/1", 2))
		fold(0, at("b/1", 1), at("far/1", 1)) // not worth two calls
		fold(3, at("b/1", 1), at("far/1", 1), at("far/2", 1), at("far/3", 1))
		late := s.append(t, at("far/9", 1))
		s.clock.ms += 2000
		for p, events := range late {
			if f := s.foldBatch(t, p, events); f.Late != 1 || f.Folded != 0 {
				t.Errorf("an event that comes too late for every window: %+v", f)
			}
		}
		for range 200 {
			s.clock.ms += 1000
			s.fold(t, nil, at("two/0", 1))
		}
		if s.store.AnsweredQuick() == quick {
			t.Error("a key that was near a level once is never folded quickly again")
		}
	})
}

// Where the events of a partition are no stream, those of the others are counted all the same, and reported.
func TestAQuickFoldOfNoStream(t *testing.T) {
	eachRedis(t, quickFoldRules(t), func(t *testing.T, s *store) {
		var events []windows.Event
		for i := range 40 {
			events = append(events, windows.Event{Key: fmt.Sprint("far/", i), Ms: s.clock.ms, Count: 1})
		}
		var batches []windows.Batch
		for p, list := range s.append(t, events...) {
			batches = append(batches, windows.Batch{Partition: p, Events: list})
		}
		bad := batches[0]
		testkit.Must(t, s.redis.Set(t.Context(), s.keys.Events(bad.Partition), "x", 0).Err())
		f, _, err := s.store.FoldBatches(t.Context(), s.rules, batches)
		if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || f.Folded != int64(40-len(bad.Events)) ||
			f.Keys != nil {
			t.Errorf("%+v, %v", f, err)
		}
	})
}
