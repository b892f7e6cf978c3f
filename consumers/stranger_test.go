package consumers

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// oddKeys are valid keys that have a special meaning for some program on the way.
var oddKeys = []string{
	"KEYS[1]", "'); redis.call('FLUSHALL') --", "%d%s%%", "^.-$", "[[x]]", "return nil", // Lua and its patterns
	"*", "user:*", "[a-z]?", `\*`, "h?llo", // globs
	">", "a.>", "*.*", "a.b.c", "$SYS.REQ", "a b", ".", "..", // NATS
	"{", "}", "{}", "{}{a}", "{a}:b", "}{", "{{a}}", "x{2}:events", "{0}:levels", // hash tags, and our own names
	"a|b!c,d@e+f", "a\u2028b", "é", "0", "-1", "nan", "~YQ", "~~", "sc:{1}:log:x",
	strings.Repeat("k", 512), strings.Repeat("é", 256), strings.Repeat(".", 192),
}

// algorithmRules has a rule for the keys of each algorithm, "name/…".
func algorithmRules() (rules []*windows.Rule) {
	for _, a := range windows.Algorithms {
		rules = append(rules, &windows.Rule{Name: a, Match: a + "/*", Algorithm: a,
			Windows: []windows.Window{{Limit: 10, Per: 24 * time.Hour}}, Alerts: []int{50}})
	}
	return append(rules, &windows.Rule{Name: "odd", Match: "*", Windows: []windows.Window{{Limit: 10,
		Per: 24 * time.Hour}}, Alerts: []int{50}})
}

// publisher returns a publisher to a real NATS, and JetStream there.
func (w *world) publisher() (*alerts.Publisher, jetstream.JetStream) {
	w.t.Helper()
	url := streamtest.NATS(w.t)
	publisher, err := alerts.NewPublisher(streamtest.ConnectNATS(w.t, url), alerts.PublisherConfig{
		Prefix: w.keys.Prefix, Log: slog.New(slog.DiscardHandler)})
	testkit.Must(w.t, err)
	testkit.Must(w.t, publisher.Ensure(w.t.Context()))
	return publisher, streamtest.JetStream(w.t, url)
}

// Keys that look like something else pass through every step: appended, folded, published, and taken by NATS.
func TestOddKeysGoAllTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, algorithmRules()...)
	publisher, _ := w.publisher()
	r := &recorder{next: publisher}
	w.start(r, nil)
	var keys []string
	for i, odd := range oddKeys {
		keys = append(keys, odd)
		if key := windows.Algorithms[i%len(windows.Algorithms)] + "/" + odd; len(key) <= api.MaxKeyBytes {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		w.append(api.Event{Key: key, Count: 4, ID: key[:min(len(key), 20)]}, api.Event{Key: key, Count: 7})
	}
	for _, key := range keys {
		w.eventuallyUsed(key, 11)
		w.told(r, key, toTheTop)
	}
	if n := w.sample("dead_letters_total"); n != 0 {
		t.Errorf("%v dead letters", n)
	}
}

// stranger writes garbage into everything under a prefix.
type stranger struct {
	*world
	chance *rand.Rand
	things []any
}

func (s *stranger) thing() any { return s.things[s.chance.IntN(len(s.things))] }

// scribble makes one write, which Redis may refuse.
func (s *stranger) scribble(ctx context.Context) {
	p := s.chance.IntN(s.keys.Partitions)
	victim := fmt.Sprint("garbage", s.chance.IntN(20))
	algorithm := windows.Algorithms[s.chance.IntN(len(windows.Algorithms))]
	form := []string{"log", "zset", "pair", "buckets", "fixed"}[s.chance.IntN(5)]
	counter := s.keys.Counter(p, form, algorithm+"/"+victim)
	key := []string{s.keys.Events(p), s.keys.Outbox(p), s.keys.Dead(p), counter}[s.chance.IntN(4)]
	switch s.chance.IntN(10) {
	case 0: // entries with odd fields
		s.redis.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"key", s.thing(), "count", s.thing(), "total",
			s.thing()}})
	case 1:
		s.redis.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"id", s.thing(), fmt.Sprint(s.thing()),
			s.thing()}})
	case 2: // events of keys that the stranger has spoiled
		s.redis.XAdd(ctx, &redis.XAddArgs{Stream: s.keys.Events(p), Values: []any{"key", algorithm + "/" + victim,
			"count", 6}})
	case 3:
		s.redis.XAdd(ctx, &redis.XAddArgs{Stream: s.keys.Outbox(p), Values: []any{"rule", s.thing(), "key", s.thing(),
			"state", "raised", "level", s.thing(), "limit", 1, "window", 1, "used", 1,
			"at", s.thing(), "since", 1, "until", 1, "expires", s.thing(), "flags", "sr"}})
	case 4:
		s.redis.HSet(ctx, s.keys.Levels(p), algorithm+"/"+victim, fmt.Sprintf("%s|86400000,10,%v,%v,100@%v",
			algorithm, s.thing(), s.thing(), s.thing()))
		s.redis.ZAdd(ctx, s.keys.Due(p), redis.Z{Score: -1, Member: algorithm + "/" + victim})
	case 5:
		s.redis.ZAdd(ctx, s.keys.Due(p), redis.Z{Score: s.chance.Float64(), Member: s.thing()})
		s.redis.ZAdd(ctx, s.keys.IDs(p), redis.Z{Score: s.chance.Float64(), Member: s.thing()})
	case 6:
		s.redis.Set(ctx, s.keys.Relay(p), s.thing(), 0)
		s.redis.HSet(ctx, s.keys.Meta(), "rules", s.thing())
	case 7: // counters of every type
		s.redis.Del(ctx, counter)
		s.redis.Set(ctx, counter, s.thing(), 0)
	case 8:
		s.redis.Del(ctx, counter)
		s.redis.ZAdd(ctx, counter, redis.Z{Score: s.chance.NormFloat64() * 1e13, Member: s.thing()})
	case 9: // a key of the partition itself, for a while
		name := []string{s.keys.IDs(p), s.keys.Due(p), s.keys.Dead(p)}[s.chance.IntN(3)]
		s.redis.Rename(ctx, name, name+":away")
		s.redis.Set(ctx, name, s.thing(), 0)
		s.redis.Del(ctx, name)
		s.redis.Rename(ctx, name+":away", name)
	}
}

// Another program writes garbage into every key, while events flow. Every good event counts once, every partition
// works, and each key's transitions come in order.
func TestAStrangerWritesEverywhere(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorldOf(t, streamtest.Redis(t), 4, algorithmRules()...)
	publisher, _ := w.publisher()
	r := &recorder{next: publisher}
	w.start(r, nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &stranger{world: w, chance: rand.New(rand.NewPCG(seed, 0)), things: []any{
		"", "x", "inf", "nan", "-1", "0", "1e300", "1.5", strings.Repeat("9", 400), "\x00\xff\r\n", "*.>", ">", "a b",
		"odd", strings.Repeat("k", 5000), 1 << 52, time.Now().UnixMilli(), "1795274075390 86400000,5,5", "5\n",
	}}
	want := map[string]int64{}
	for round := range 36 {
		for range 20 {
			s.scribble(ctx)
		}
		if round == 18 { // independent of the random writes: a corrupt counter, and an event for it
			spoiled := keyOf(w.keys, 0, "sliding-log/spoiled")
			s.redis.Set(ctx, s.keys.Counter(0, "log", spoiled), "x", 0)
			w.append(api.Event{Key: spoiled, Count: 1})
		}
		var events []api.Event
		for i, a := range windows.Algorithms {
			for p := range w.keys.Partitions {
				key := keyOf(w.keys, p, fmt.Sprintf("%s/good%d", a, round/12))
				e := api.Event{Key: key, Count: 1}
				if i%2 == 0 {
					e.ID = fmt.Sprint("id", round)
				}
				events = append(events, e)
				want[key]++
			}
		}
		w.append(events...)
	}
	// Independent of the random writes: a corrupt record that is due.
	s.redis.HSet(ctx, s.keys.Levels(0), "sliding-log/spoiled", "sliding-log|86400000,10,x,x,100@x")
	s.redis.ZAdd(ctx, s.keys.Due(0), redis.Z{Score: -1, Member: "sliding-log/spoiled"})
	for key, n := range want {
		w.eventuallyUsed(key, n)
	}
	w.eventually("nothing is pending", func() (bool, string) { return w.pending() == 0, fmt.Sprint(w.pending()) })
	for p := range w.keys.Partitions {
		w.waiting(p, 0)
	}
	for key, n := range want {
		if got := w.used(key); got != n { // and no more, when all work is done
			t.Errorf("%s has used %d, expected %d", key, got, n)
		}
		w.told(r, key, toTheTop)
	}
	if n := w.sample("partition_quarantined"); n != 0 {
		t.Errorf("%v partitions are quarantined", n)
	}
	for _, m := range []string{"dead_letters_total", "levels_corrupt_total", "counters_corrupt_total"} {
		w.eventually(m+" says what harm the stranger did", func() (bool, string) {
			return w.sample(m) > 0, fmt.Sprint(w.sample(m))
		})
	}
}

// keyOf returns a key that begins with a name, in partition p.
func keyOf(k *stream.Keys, p int, name string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("%s-%d", name, i); k.Partition(key) == p {
			return key
		}
	}
}
