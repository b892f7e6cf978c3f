package counters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// garbage is foreign data in a counter's place.
type garbage struct {
	what string
	// between: it is before a valid entry, so that only a look into the window reads
	// it. Otherwise nothing of the counter can be read.
	between bool
	put     func(c redis.UniversalClient, name string) error
}

var nonsense = []string{"inf", "-inf", "nan", "1e300", "-5", "0", "1.5", "x", "", "0x7fffffffffffffff",
	"99999999999999999999", strings.Repeat("9", 400)}

// garbageFor returns foreign data for the key where an algorithm expects its counter, which is of this type
// in Redis: first data for any algorithm, then data that looks like a counter of this one.
func garbageFor(algorithm, kind string, now int64) (list []garbage) {
	ctx := context.Background()
	add := func(what string, between bool, commands ...[]any) {
		list = append(list, garbage{what: what, between: between, put: func(c redis.UniversalClient,
			name string) error {
			for _, args := range commands {
				words := append([]any{args[0], name}, args[1:]...)
				if err := c.Do(ctx, words...).Err(); err != nil {
					return fmt.Errorf("%v: %w", args, err)
				}
			}
			return nil
		}})
	}
	add("a list", false, []any{"RPUSH", "x"})
	add("a hash", false, []any{"HSET", "total", "5"})
	switch kind {
	case "stream":
		add("no fields of ours", false, []any{"XADD", at(now), "total", 5})
		add("the year 5000", false, []any{"XADD", "95617584000000-0", "count", 1, "total", 1})
		add("the greatest ID", false, []any{"XADD", lastID, "count", 1, "total", 1})
	case "zset":
		for _, n := range append(nonsense, "5:inf", ":", "1:", "1:1:1", strings.Repeat("9", 400)+":1") {
			add("the member "+n, false, []any{"ZADD", now - 10, n})
		}
		for _, score := range []string{"inf", "1e300", "1700000000000.5", "95617584000000"} {
			add("a score of "+score, false, []any{"ZADD", score, "0000000000000002:1"})
		}
		add("a score of -inf", false, []any{"ZADD", "-inf", "0000000000000002:1"})
	case "string":
		texts := append([]string{" ", "\n", "1\x00", fmt.Sprintf("%d", 1<<60), strings.Repeat("1", 100_000)},
			nonsense...)
		for _, t := range texts {
			if t != "0" || algorithm == windows.SlidingBuckets { // a counter of no window
				add(fmt.Sprintf("the text %.20q", t), false, []any{"SET", t})
			}
		}
	}
	if kind != "stream" {
		add("a stream", false, []any{"XADD", "*", "count", 1, "total", 1})
	}
	if kind != "zset" {
		add("a sorted set", false, []any{"ZADD", now, "0000000000000005:1"})
	}
	if kind != "string" {
		add("a string", false, []any{"SET", "5"})
	}
	if like := garbageLike[algorithm]; like != nil {
		like(now, add)
	}
	return list
}

func at(ms int64) string { return fmt.Sprintf("%d-0", ms) }

const lastID = "18446744073709551615-18446744073709551615"

// garbageLike: algorithm → adds data that looks like its counters, but is not valid.
var garbageLike = map[string]func(now int64, add func(what string, between bool, commands ...[]any)){
	"sliding-log": func(now int64, add func(string, bool, ...[]any)) {
		for _, n := range nonsense {
			add("a total of "+n, false, []any{"XADD", at(now - 10), "count", 1, "total", n})
			add("a total of "+n+" before a good one", true, []any{"XADD", at(now - 10), "count", 1, "total", n},
				[]any{"XADD", at(now - 5), "count", 1, "total", 2})
			add("a count of "+n+" before a good one", true, []any{"XADD", at(now - 10), "count", n, "total", 1},
				[]any{"XADD", at(now - 5), "count", 1, "total", 2})
		}
		add("a total below the one before", true, []any{"XADD", at(now - 10), "count", 1, "total", 1 << 52},
			[]any{"XADD", at(now - 5), "count", 1, "total", 1})
		add("the greatest total", false, []any{"XADD", at(now), "count", 1, "total", 1<<53 - 1})
		add("the greatest ID, deleted", true, []any{"XADD", at(now - 5), "count", 1, "total", 1},
			[]any{"XADD", lastID, "count", 1, "total", 1}, []any{"XDEL", lastID})
	},
	"sliding-log-zset": func(now int64, add func(string, bool, ...[]any)) {
		for _, n := range append(nonsense, "5:inf", ":", "1:", "1:1:1", strings.Repeat("9", 400)+":1") {
			add("the member "+n+" before a good one", true, []any{"ZADD", now - 10, n},
				[]any{"ZADD", now - 5, "0000000000000002:1"})
		}
		add("a score between", true, []any{"ZADD", fmt.Sprintf("%d.5", now-10), "0000000000000001:1", now - 5,
			"0000000000000002:1"})
	},
	"sliding-counter":      garbageOfTheClock,
	"fixed-window":         garbageOfTheClock,
	windows.SlidingBuckets: garbageRings,
}

func garbageOfTheClock(now int64, add func(string, bool, ...[]any)) {
	for _, n := range nonsense {
		add("units of "+n, true, []any{"SET", fmt.Sprintf("%d 3600000,%s,%s", now, n, n)})
	}
}

func garbageRings(now int64, add func(string, bool, ...[]any)) {
	ring := func(slot string) string { return strings.Repeat(slot, 61) }
	for what, t := range map[string]string{
		"no ring":                    " 3600000,60,2,5\n",
		"a ring too short":           " 3600000,60,3,5\n" + ring("\x00\x00"),
		"a ring too long":            " 3600000,60,2,5\n" + ring("\x00\x00") + "x",
		"numbers of no byte":         " 3600000,60,0,5\n",
		"numbers of a million bytes": " 3600000,60,1000000,5\n" + ring("\x00\x00"),
		"numbers of eight bytes":     " 3600000,60,8,5\n" + ring("\x00\x00\x00\x00\x00\x00\x00\x00"),
		"no buckets":                 " 3600000,0,2,5\n" + ring("\x00\x00"),
		"no window":                  " 0,60,2,5\n" + ring("\x00\x00"),
		"a total of " + nonsense[10]: " 3600000,60,2," + nonsense[10] + "\n" + ring("\x00\x00"),
		"a total of 400 digits":      " 3600000,60,2," + strings.Repeat("9", 400) + "\n" + ring("\x00\x00"),
	} {
		add(what, false, []any{"SET", fmt.Sprint(now) + t})
	}
	add("a ring above its total", true, []any{"SET", fmt.Sprint(now) + " 3600000,60,2,5\n" + ring("\xff\xff")})
	add("the greatest total", true, []any{"SET", fmt.Sprint(now) + " 3600000,60,7,4503599627370496\n" +
		ring("\x00\x00\x00\x00\x00\x00\x00")})
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
		for i, g := range garbageFor(s.rules.List()[0].Algorithm, kind, s.clock.ms) {
			if embedded && strings.HasSuffix(g.what, "deleted") {
				continue // it accepts IDs that a real Redis refuses
			}
			bad, good, reserved := fmt.Sprintf("{x}bad%d", i), fmt.Sprintf("{x}good%d", i), fmt.Sprintf("{x}held%d", i)
			err := errors.Join(g.put(s.redis, s.counter(bad)), g.put(s.redis, s.counter(reserved)))
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

// Each operation that decides or counts names the corrupt counters that it found, so that operators can see them.
func TestCorruptCountersAreNamed(t *testing.T) {
	rule := windows.Rule{Windows: []windows.Window{{Limit: 9, Per: time.Hour}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		found := s.corrupt()
		for name, do := range map[string]func(key string){
			"check":     func(key string) { s.check(key, 1) },
			"denied":    func(key string) { s.check(key, 10) },
			"look":      func(key string) { s.ask(key, 1, api.ModeLook) },
			"peek":      func(key string) { s.peek(key) },
			"reserve":   func(key string) { s.reserve("r", 1, time.Minute, key) },
			"forbidden": func(key string) { s.reserve("f", 10, time.Minute, key) },
			"fold":      func(key string) { s.fold(t, nil, counters.Event{Key: key, Ms: s.clock.ms, Count: 1}) },
		} {
			bad := "bad" + name
			testkit.Must(t, s.redis.Set(t.Context(), s.counter(bad), "x", 0).Err())
			*found = nil
			do("good" + name)
			do(bad)
			do("good" + name)
			if !slices.Equal(*found, []string{s.counter(bad)}) {
				t.Errorf("%s: it names %q as corrupt", name, *found)
			}
		}
	})
	rule.Name, rule.Match, rule.Penalty = "a", "*", []time.Duration{time.Minute}
	eachRedis(t, rulesOf(t, &rule), func(t *testing.T, s *store) {
		name, found := s.keys.Counter(s.keys.Partition("k"), "penalty", "k"), s.corrupt()
		testkit.Must(t, s.redis.Set(t.Context(), name, "x", 0).Err())
		if s.check("k", 1); !slices.Equal(*found, []string{name}) {
			t.Errorf("it names %q as corrupt, expected its penalty", *found)
		}
	})
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

// One of the partitions that are folded together has a string in place of its events. No event of it is counted. The
// events of the other partitions are counted once, with their transitions, and the fold returns an error, so that its
// caller checks the partition.
func TestFoldWithoutTheEventsOfAPartition(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		ctx := context.Background()
		var events []counters.Event
		var keys []string
		for p := range 3 {
			key := s.keyIn(p)
			keys = append(keys, key)
			for _, count := range []int64{3, 3, 2, 1, 1} { // a group of two, one of one, and two with ids
				events = append(events, counters.Event{Key: key, Ms: start, Count: count})
			}
		}
		var batches []counters.Batch
		for p, list := range s.append(t, events...) {
			list[3].ProducerID, list[4].ProducerID = "a", "b"
			batches = append(batches, counters.Batch{Partition: p, Events: list})
		}
		const bad, aside = 1, "aside:{1}"
		testkit.Must(t, s.redis.Rename(ctx, s.keys.Events(bad), aside).Err())
		testkit.Must(t, s.redis.Set(ctx, s.keys.Events(bad), "not ours", 0).Err())
		toTheTop := func(key string) (want []string) {
			for _, level := range []string{"raised api/%s 80%%", "raised api/%s 95%%", "raised api/%s 100%%",
				"throttled api/%s 100%%"} {
				want = append(want, fmt.Sprintf(level, key)+" used 10")
			}
			return want
		}
		want := append(toTheTop(keys[0]), toTheTop(keys[2])...)
		for range 2 {
			if _, _, err := s.store.Fold(ctx, s.rules, batches...); !redisclient.IsWrongType(err) {
				t.Fatalf("the fold answers %v", err)
			}
			if got := s.transitions(t); !slices.Equal(got, want) {
				t.Fatalf("transitions %q, expected %q", got, want)
			}
			if n := []int64{used(t, s, keys[0]), used(t, s, keys[1]), used(t, s, keys[2])}; !slices.Equal(n,
				[]int64{10, 0, 10}) {
				t.Fatalf("used %d, expected none in partition %d and 10 in each other", n, bad)
			}
			want = []string{}
		}
		testkit.Must(t, s.redis.Rename(ctx, aside, s.keys.Events(bad)).Err())
		f, _, err := s.store.Fold(ctx, s.rules, batches...)
		if err != nil || f.Folded != 5 || f.AlreadyCounted != 10 {
			t.Fatalf("with the events back: %+v, %v", f, err)
		}
		if got := s.transitions(t); !slices.Equal(got, toTheTop(keys[bad])) {
			t.Fatalf("transitions %q, expected %q", got, toTheTop(keys[bad]))
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
