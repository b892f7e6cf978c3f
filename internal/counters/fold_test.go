package counters_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func used(t testing.TB, s *store, key string) int64 {
	t.Helper()
	st, err := s.Peek(context.Background(), s.rules.Match(key), key)
	testkit.Must(t, err)
	return st.Windows[0].Used
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
		entries, err := s.redis.XRange(context.Background(), s.keys.Counter(s.keys.Partition("k"), "log", "k"), "-",
			"+").Result()
		testkit.Must(t, err)
		var got []string
		for _, e := range entries {
			got = append(got, fmt.Sprintf("%s %s/%s", e.ID, e.Values["count"], e.Values["total"]))
		}
		want := fmt.Sprintf("%d-0 3/3, %d-0 1/4", start-4400, start-4399)
		if strings.Join(got, ", ") != want {
			t.Fatalf("log %v, expected %s", got, want)
		}
	})
}

func TestFoldLeavesLateEventsOut(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		for p, batch := range s.append(t, counters.Event{Key: "k", Ms: start - 10_000, Count: 1},
			counters.Event{Key: "k", Ms: start - 9_980, Count: 1}) {
			if f := s.foldBatch(t, p, batch); f.Late != 1 || f.Folded != 1 {
				t.Fatalf("%+v", f)
			}
		}
		if n := used(t, s, "k"); n != 1 {
			t.Fatalf("used %d, expected 1", n)
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

// A key was in use, and then not for longer than its window. Its total starts over,
// and its older entries are removed, so that a longer window of a later rule does
// not read two series of totals.
func TestTotalStartsOverWithACleanLog(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x := tale{t, s}
		for range 9 {
			x.check("k", 1)
			s.clock.ms += 100
		}
		s.clock.ms += 20_000
		x.check("k", 2)
		entries, err := s.redis.XRange(context.Background(), s.keys.Counter(s.keys.Partition("k"), "log", "k"), "-",
			"+").Result()
		if err != nil || len(entries) != 1 || entries[0].Values["total"] != "2" {
			t.Fatalf("log %v, %v", entries, err)
		}
		s.rules = rulesOf(t, wide(nil))
		if n := used(t, s, "k"); n != 2 {
			t.Fatalf("used %d under a longer window, expected 2", n)
		}
	})
}

// An event whose ID is in the future counts now. It does not change the other events
// of its batch, which it would otherwise move out of their windows.
func TestFoldOfAFutureEvent(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, a := range windows.Algorithms {
			s.rules = rulesOf(t, &windows.Rule{Name: "r", Match: "*", Algorithm: a,
				Windows: []windows.Window{{Limit: 100, Per: time.Minute}}})
			k, other := "k"+a, "other{k"+a+"}"
			p := s.keys.Partition(k)
			// The stream takes only rising IDs, so the events of now come first.
			batch := s.append(t, counters.Event{Key: other, Ms: s.clock.ms, Count: 2},
				counters.Event{Key: k, Ms: s.clock.ms, Count: 3},
				counters.Event{Key: k, Ms: s.clock.ms + 3_600_000, Count: 4})[p]
			if f := s.foldBatch(t, p, batch); f.Folded != 3 || f.Late != 0 {
				t.Fatalf("%s: %+v", a, f)
			}
			if n, m := used(t, s, k), used(t, s, other); n != 7 || m != 2 {
				t.Fatalf("%s: used %d and %d, expected 7 and 2", a, n, m)
			}
			st, err := s.Peek(context.Background(), s.rules.Match(k), k)
			if err != nil || st.NowMs != s.clock.ms {
				t.Fatalf("%s: the clock of the key is %d ms ahead, %v", a, st.NowMs-s.clock.ms, err)
			}
			testkit.Must(t, s.redis.Del(context.Background(), s.keys.Events(p)).Err())
		}
	})
}
