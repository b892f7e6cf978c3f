package counters_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// foldRules have a rule per algorithm, with shadow rules on the same counter and on another,
// and limits that a test of some hundred events crosses.
func foldRules(t testing.TB) *windows.Rules {
	var list []*windows.Rule
	for _, a := range windows.Algorithms {
		list = append(list,
			&windows.Rule{Name: a, Match: a + "/*", Algorithm: a, Alerts: []int{50}, Hold: time.Second,
				Windows: []windows.Window{{Limit: 12, Per: time.Second}, {Limit: 40, Per: time.Minute}}},
			&windows.Rule{Name: a + "-same", Match: a + "/*", Algorithm: a, Shadow: true,
				Windows: []windows.Window{{Limit: 25, Per: 10 * time.Second}}},
			&windows.Rule{Name: a + "-other", Match: a + "/*", Algorithm: "sliding-buckets", Shadow: true,
				Windows: []windows.Window{{Limit: 20, Per: 20 * time.Second}}})
	}
	return rulesOf(t, list...)
}

// contents gives all keys of a store with what they hold, without its prefix. IDs of
// the outbox are the server's own time.
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
			list := s.redis.XRange(ctx, name, "-", "+").Val()
			if _, key, found := strings.Cut(short, ":log:"); found {
				list = s.counted(list, key)
			}
			for i := range list {
				if strings.HasSuffix(name, ":outbox") {
					list[i].ID = ""
				}
			}
			all[short] = fmt.Sprint(list)
		default:
			t.Fatalf("%s is a %s", name, kind)
		}
	}
	delete(all, ":meta")
	return all
}

// counted leaves out what has left every window of a log: some is trimmed, by whole nodes of the stream. An
// ID that Redis chose by its own clock is left out too.
func (s *store) counted(list []redis.XMessage, key string) (counted []redis.XMessage) {
	span, newest := time.Duration(0), int64(0)
	for _, w := range s.rules.Match(key).Live.Windows {
		span = max(span, w.Per)
	}
	for _, m := range slices.Backward(list) {
		ms, _ := strconv.ParseInt(m.ID[:strings.Index(m.ID, "-")], 10, 64)
		if ms > s.clock.ms+24*time.Hour.Milliseconds() {
			m.ID = ""
		}
		newest = max(newest, ms)
		if ms > newest-span.Milliseconds() {
			counted = append(counted, m)
		}
	}
	return counted
}

// What one call folds of several partitions is to the last field what a call for each
// makes of it: the counts, the levels, the transitions, the ids, and who is acknowledged.
func TestFoldingTogetherEqualsFoldingSeparately(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		s.rules = foldRules(t)
		other := s.twin(t)
		other.separately = true
		n := 0
		foldAlike(t, s, other, 700, func(random *rand.Rand) {
			n++
			key, what := "sliding-log/"+fmt.Sprint(random.IntN(5)), random.IntN(6)
			s.meddle(t, what, key, n)
			other.meddle(t, what, key, n)
		})
	})
}

// meddle does something to a log: another thing stands in its place, its newest entry is gone, it takes no
// more IDs, units of its key are reserved or given back, numbers are none.
func (s *store) meddle(t *testing.T, what int, key string, n int) {
	ctx, counter := t.Context(), s.keys.Counter(s.keys.Partition(key), "log", key)
	requests := []counters.Request{{Plan: s.rules.Match(key), Key: key, Cost: 2}}
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
	case 5: // before one that reads well
		for i, total := range []string{"nan", "50"} {
			_ = s.redis.XAdd(ctx, &redis.XAddArgs{Stream: counter, ID: fmt.Sprintf("%d-%d", s.clock.ms, 100+i),
				Values: []any{"count", total, "total", total}}).Err()
		}
	}
	testkit.Must(t, err)
}

// twin makes a store with keys of its own that has the same clock and rules.
func (s *store) twin(t testing.TB) *store {
	other := newStore(t, s.redis, s.redis, s.reader, s.rules)
	other.clock = s.clock
	other.useClock(s.clock.now)
	return other
}

// foldAlike folds the same events in two stores, older batches among them, and compares what becomes of
// them after each call. meddle, where it is not nil, does something to both before it.
func foldAlike(t *testing.T, s, other *store, step int64, meddle func(random *rand.Rand)) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var kept [2][]counters.Batch // batches that are folded again
	for range 30 {
		s.clock.ms += random.Int64N(step)
		if meddle != nil {
			meddle(random)
		}
		kept = appendAlike(t, random, [2]*store{s, other}, kept)
		again := map[int]bool{} // partitions of which an older batch is folded in place of the new one
		for p := range s.keys.Partitions {
			again[p] = random.IntN(3) == 0
		}
		pick := random.Uint64()
		var sums [2]counters.Folded
		for i, st := range []*store{s, other} {
			batches := st.batchesOf(kept[i], again, rand.New(rand.NewPCG(pick, 2)))
			waiting := st.allPending(t)
			sums[i] = st.foldBatches(t, batches)
			if acked := waiting - st.allPending(t); sums[i].Folded+sums[i].Late+sums[i].Duplicate != acked {
				t.Fatalf("%d events were acknowledged, counted are %+v", acked, sums[i])
			}
		}
		sums[0].Keys, sums[1].Keys = nil, nil // in the order of the batches
		if !cmp.Equal(sums[0], sums[1]) {
			t.Fatalf("one %+v, the other %+v", sums[0], sums[1])
		}
		compareStores(t, s, other)
	}
}

// appendAlike appends the same events to two stores, and adds what is read of them to what was kept.
func appendAlike(t *testing.T, random *rand.Rand, stores [2]*store, kept [2][]counters.Batch) [2][]counters.Batch {
	s, rules := stores[0], stores[0].rules.List()
	var events []counters.Event
	at := s.clock.ms // or, where the clock stepped back, when the newest came
	for _, b := range kept[0] {
		at = max(at, b.Events[len(b.Events)-1].Ms)
	}
	for range 1 + random.IntN(40) {
		name := strings.TrimSuffix(rules[random.IntN(len(rules))].Match, "*")
		e := counters.Event{Key: fmt.Sprint(name, random.IntN(5)), Ms: at, Count: 1 + random.Int64N(3)}
		if random.IntN(20) == 0 {
			e.Key = "nobody's"
		}
		events = append(events, e)
	}
	ids := map[string]string{} // of an event → its producer's
	seed := random.Uint64()
	for i, st := range stores {
		read := st.append(t, events...)
		some := rand.New(rand.NewPCG(seed, 1))
		for _, p := range slices.Sorted(maps.Keys(read)) {
			for j := range read[p] {
				e := &read[p][j]
				if i == 0 && some.IntN(4) == 0 {
					ids[fmt.Sprint(p, e.ID)] = fmt.Sprint(some.IntN(30))
				}
				e.ProducerID = ids[fmt.Sprint(p, e.ID)]
			}
			kept[i] = append(kept[i], counters.Batch{Partition: p, Events: read[p]})
		}
	}
	return kept
}

// batchesOf picks the newest batch of each partition, or any of them.
func (s *store) batchesOf(kept []counters.Batch, again map[int]bool, choose *rand.Rand) (batches []counters.Batch) {
	for p := range s.keys.Partitions {
		var of []counters.Batch
		for _, b := range kept {
			if b.Partition == p {
				of = append(of, b)
			}
		}
		if len(of) > 0 {
			b := of[len(of)-1]
			if again[p] {
				b = of[choose.IntN(len(of))]
			}
			batches = append(batches, b)
		}
	}
	return batches
}

// compareStores fails where two stores do not hold the same, or do not wait for the same events.
func compareStores(t *testing.T, s, other *store) {
	t.Helper()
	want := other.contents(t)
	for name, got := range s.contents(t) {
		if got != want[name] {
			t.Fatalf("%s: one %s, the other %s", name, got, want[name])
		}
		delete(want, name)
		one, two := s.redis.PTTL(t.Context(), s.keys.Prefix+name), s.redis.PTTL(t.Context(), other.keys.Prefix+name)
		if apart := one.Val() - two.Val(); apart.Abs() > time.Minute {
			t.Fatalf("%s expires in %s in one, in %s in the other", name, one.Val(), two.Val())
		}
	}
	if len(want) > 0 {
		t.Fatalf("only in the other: %v", want)
	}
	for p := range s.keys.Partitions {
		one, two := s.pending(t, p), other.pending(t, p)
		if fmt.Sprint(one) != fmt.Sprint(two) {
			t.Fatalf("pending in %d: in one %v, in the other %v", p, one, two)
		}
	}
}

// allPending gives how many events were read and not acknowledged.
func (s *store) allPending(t testing.TB) (n int64) {
	for p := range s.keys.Partitions {
		n += int64(len(s.pending(t, p)))
	}
	return n
}

// pending gives the IDs of events that were read and not acknowledged.
func (s *store) pending(t testing.TB, p int) (ids []string) {
	t.Helper()
	list, err := s.redis.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: s.keys.Events(p),
		Group: eventlog.Group, Start: "-", End: "+", Count: 10_000}).Result()
	if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
		t.Fatal(err)
	}
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	return ids
}

// A key of another type in one partition fails the call before it has acknowledged or
// counted anything in any, whichever of the partition's keys it is (but for its events, see
// TestFoldWithoutTheEventsOfAPartition) and wherever the partition stands among the others.
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
						if n := len(s.pending(t, b.Partition)); n != len(b.Events) {
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

// An event that comes late is in no window that has passed it, also where that is empty and a level near.
func TestALateEventIsInNoShorterWindow(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{50}, Windows: []windows.Window{
		{Limit: 4, Per: time.Second}, {Limit: 1000, Per: 10 * time.Second}}}
	for _, algorithm := range []string{"sliding-log", "sliding-log-zset"} {
		rule.Algorithm = algorithm
		eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
			s.fold(t, nil, counters.Event{Key: "k", Ms: s.clock.ms, Count: 1})
			s.clock.ms += 5000
			s.fold(t, nil, counters.Event{Key: "k", Ms: s.clock.ms - 3000, Count: 2})
			if n := s.redis.XLen(t.Context(), s.keys.Outbox(s.keys.Partition("k"))).Val(); n != 0 {
				t.Errorf("%s: %d transitions, expected none", algorithm, n)
			}
		})
	}
}

// An event that is too late for the windows of one meter counts in the others alone.
func TestALateEventIsInTheMetersThatReachBackToIt(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{
		{Limit: 100, Per: time.Second, Algorithm: "sliding-log-zset"}, {Limit: 1000, Per: time.Hour}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		late := s.append(t, counters.Event{Key: "k", Ms: s.clock.ms - 5000, Count: 2})
		s.fold(t, nil, counters.Event{Key: "k", Ms: s.clock.ms, Count: 1})
		for p, events := range late {
			s.foldBatch(t, p, events)
		}
		st, err := s.store.Peek(t.Context(), planOf(s.rules), "k")
		testkit.Must(t, err)
		if st.Windows[0].Used != 1 || st.Windows[1].Used != 3 {
			t.Errorf("used %d and %d, expected 1 and 3", st.Windows[0].Used, st.Windows[1].Used)
		}
	})
}
