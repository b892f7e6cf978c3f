package counters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// garbage is foreign data in a counter's place: a line of testdata/garbage.
type garbage struct {
	what     string // the line
	between  bool
	commands []string
}

// garbageFor returns the foreign data for a counter of an algorithm, which is of this type in Redis.
func garbageFor(t *testing.T, algorithm, kind string) (list []garbage) {
	t.Helper()
	text, err := os.ReadFile("testdata/garbage")
	testkit.Must(t, err)
	sets := map[string][]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		where, commands, _ := strings.Cut(line, ": ")
		where, between := strings.CutSuffix(where, " between")
		other, isOther := strings.CutPrefix(where, "!")
		switch {
		case where == "NUMBER", where == "MEMBER":
			sets[where] = strings.Fields(commands)
		case where == "any", where == kind, where == algorithm, isOther && other != kind:
			words := []string{""}
			for name, set := range sets {
				if strings.Contains(commands, name) {
					words = set
				}
			}
			for _, word := range words {
				written := strings.NewReplacer("NUMBER", word, "MEMBER", word).Replace(commands)
				list = append(list, garbage{where + ": " + written, between, strings.Split(written, " ; ")})
			}
		}
	}
	return list
}

// put writes the foreign data in place of the counter of a key.
func (g garbage) put(s *store, key string) error {
	for _, command := range g.commands {
		words := strings.Fields(command)
		args := append([]any{words[0], s.counter(key)}, s.arguments(words[1:])...)
		if err := s.redis.Do(s.t.Context(), args...).Err(); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	return nil
}

// Foreign data in a counter's place makes no script fail or run forever, no other
// key of the batch or check loses anything, and the key itself is counted from then
// on, also by reservations.
func TestGarbageCountersHoldNobodyUp(t *testing.T) {
	rule := windows.Rule{Windows: []windows.Window{{Limit: 100, Per: time.Hour}}, Alerts: []int{5}, Hold: time.Second}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		s.check("k", 1)
		kind := s.redis.Type(t.Context(), s.counter("k")).Val()
		embedded := strings.HasSuffix(t.Name(), "/embedded")
		for i, g := range garbageFor(t, s.rules.List()[0].Algorithm, kind) {
			if embedded && strings.Contains(g.what, "XDEL") {
				continue // it accepts IDs that a real Redis refuses
			}
			bad, good, reserved := fmt.Sprintf("{x}bad%d", i), fmt.Sprintf("{x}good%d", i), fmt.Sprintf("{x}held%d", i)
			err := errors.Join(g.put(s, bad), g.put(s, reserved))
			if err != nil && embedded {
				continue // it refuses some of it
			}
			testkit.Must(t, err)
			s.countBeside(t, g, good, bad)
			s.reserveBeside(t, g, fmt.Sprint("r", i), reserved)
		}
	})
}

// countBeside counts a key with foreign data, and another key in the same calls.
func (s *store) countBeside(t *testing.T, g garbage, good, bad string) {
	t.Helper()
	ctx := t.Context()
	s.fold(t, nil, counters.Event{Key: good, Ms: s.clock.ms, Count: 1})
	s.peek(bad)
	ask := func(cost int64) bool {
		t.Helper()
		return s.decide(counters.Request{Plan: s.rules.Match(good), Key: good, Cost: 1},
			counters.Request{Plan: s.rules.Match(bad), Key: bad, Cost: cost}).Allowed
	}
	granted := int64(1)
	if ask(3) {
		granted++
	} else if !g.between {
		t.Errorf("%s: the first check is denied", g.what)
	}
	if ask(100) {
		t.Errorf("%s: a check above the limit is allowed", g.what)
	}
	for p, batch := range s.append(t, counters.Event{Key: bad, Ms: s.clock.ms, Count: 4},
		counters.Event{Key: good, Ms: s.clock.ms, Count: 2}, counters.Event{Key: bad, Ms: s.clock.ms, Count: 5}) {
		if f := s.foldBatch(t, p, batch); f.Folded != 3 {
			t.Fatalf("%s: fold: %+v", g.what, f)
		}
		if n := s.redis.XPending(ctx, s.keys.Events(p), eventlog.Group).Val().Count; n != 0 {
			t.Fatalf("%s: %d events pending", g.what, n)
		}
		if _, _, err := s.store.Sweep(ctx, p, s.rules, []string{bad, good}); err != nil {
			t.Fatalf("%s: sweep: %v", g.what, err)
		}
	}
	if n := used(t, s, good); n != granted+2 {
		t.Errorf("%s: the other key has used %d, expected %d", g.what, n, granted+2)
	}
	if n := used(t, s, bad); !g.between && n != 12 || n < 0 {
		t.Errorf("%s: the key has used %d, expected 12", g.what, n)
	}
	if given, _ := s.refund(bad, 2); given < 0 || !g.between && given != 2 {
		t.Errorf("%s: given back %d", g.what, given)
	}
	if ttl := s.redis.PTTL(ctx, s.counter(bad)).Val(); !g.between && ttl < 59*time.Minute {
		t.Errorf("%s: the counter ends in %v", g.what, ttl)
	}
}

// reserveBeside makes a reservation of a key with foreign data, and commits it.
func (s *store) reserveBeside(t *testing.T, g garbage, id, key string) {
	t.Helper()
	id, got := s.reserve(id, 5, time.Minute, key)
	if !got.Allowed && !g.between {
		t.Fatalf("%s: %+v", g.what, got)
	}
	if !got.Allowed {
		return
	}
	if n := used(t, s, key); n < 5 {
		t.Errorf("%s: the key has used %d, expected the 5 reserved units too", g.what, n)
	}
	if state := s.settle(reservations.Commit, id, 4, 0); state != reservations.Settled {
		t.Fatalf("%s: commit: %v", g.what, state)
	}
	if n := used(t, s, key); !g.between && n != 4 {
		t.Errorf("%s: the key has used %d, expected 4", g.what, n)
	}
}

// corrupt returns the list of the names that are reported as corrupt from now on.
func (s *store) corrupt() *[]string {
	var found []string
	note := func(name string) { found = append(found, name) }
	s.serve.Caller().Corrupt, s.store.Caller().Corrupt = note, note
	return &found
}

// A string in place of the levels of a partition hides that partition alone from listings. The log names it.
func TestListingsWithoutTheLevelsOfAPartition(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		var log bytes.Buffer
		s.serve.ReportCorrupt(nil, slog.New(slog.NewTextHandler(&log, nil)))
		good, bad := s.keyIn(1), s.keys.Levels(0)
		for range 100 {
			s.check(good, 1)
		}
		testkit.Must(t, s.redis.Set(t.Context(), bad, "x", 0).Err())
		page, _, err := s.serve.ThrottledPage(t.Context(), s.rules, 10, "", nil)
		if err != nil || len(page) != 1 || page[0].Key != good {
			t.Errorf("%+v, %v, want %s alone", page, err, good)
		}
		if all, err := s.serve.Overview(t.Context(), s.rules, 10); err != nil || len(all.Throttled) != 1 {
			t.Errorf("%+v, %v, want one throttled key", all, err)
		}
		if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "key="+bad) {
			t.Errorf("the log: %s", text)
		}
	})
}

// keyIn returns a key of a partition.
func (s *store) keyIn(p int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("k%d", i); s.keys.Partition(key) == p {
			return key
		}
	}
}

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
