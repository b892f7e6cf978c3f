package consumers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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

// told keeps the messages in the JetStream streams of a prefix.
type told struct {
	mu   sync.Mutex
	seen map[string][]string // key → states, of alerts
	bad  []string
}

// take compares each subject with its payload.
func (h *told) take(prefix string, m jetstream.Msg) {
	var tr api.Transition
	err := json.Unmarshal(m.Data(), &tr)
	h.mu.Lock()
	defer h.mu.Unlock()
	tokens := strings.Split(m.Subject(), ".")
	key, plain := api.ParseKeyToken(tokens[len(tokens)-1])
	switch {
	case err != nil || tr.Subject(prefix) != m.Subject() || tokens[2] != tr.Rule || plain && key != tr.Key:
		h.bad = append(h.bad, fmt.Sprintf("%s: %s", m.Subject(), m.Data()))
	case tr.IsThrottle(): // one per subject is kept
		h.seen["throttle "+tr.Key] = []string{string(tr.State)}
	default:
		h.seen[tr.Key] = append(h.seen[tr.Key], fmt.Sprintf("%s %d", tr.State, tr.Level))
	}
}

// of returns the states of a key's alerts, and then of its throttle decision.
func (h *told) of(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(append(slices.Clone(h.seen[key]), h.seen["throttle "+key]...), ", ")
}

const toldToTheTop = "raised 50, raised 100, throttled"

// publisher returns a publisher to a real NATS, and JetStream there.
func (w *world) publisher(t *testing.T) (*alerts.Publisher, jetstream.JetStream) {
	t.Helper()
	url := streamtest.NATS(t)
	publisher, err := alerts.NewPublisher(streamtest.ConnectNATS(t, url), alerts.PublisherConfig{Prefix: w.keys.Prefix,
		Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	testkit.Must(t, publisher.Ensure(t.Context()))
	return publisher, streamtest.JetStream(t, url)
}

// publishTo starts a pool that publishes to a real NATS, and subscribes there.
func (w *world) publishTo(t *testing.T) *told {
	t.Helper()
	publisher, js := w.publisher(t)
	h := &told{seen: map[string][]string{}}
	throttle, alert := alerts.StreamNames(w.keys.Prefix)
	for _, name := range []string{throttle, alert} {
		consumer, err := js.OrderedConsumer(t.Context(), name, jetstream.OrderedConsumerConfig{})
		testkit.Must(t, err)
		consuming, err := consumer.Consume(func(m jetstream.Msg) { h.take(w.keys.Prefix, m) })
		testkit.Must(t, err)
		t.Cleanup(consuming.Stop)
	}
	w.start(publisher, nil)
	return h
}

// Keys that look like something else pass through every step: appended, folded, published in an alert on their own
// subject, and read back.
func TestOddKeysGoAllTheWay(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		w := newWorld(t, url, algorithmRules()...)
		h := w.publishTo(t)
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
			w.eventually(fmt.Sprintf("%q is told of", key), func() (bool, string) {
				return h.of(key) == toldToTheTop,
					h.of(key)
			})
		}
		if n := w.sample("dead_letters_total"); n != 0 || len(h.bad) != 0 {
			t.Errorf("%v dead letters; %q", n, h.bad)
		}
	})
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
	ctx := context.Background()
	w := newWorld(t, shared(t), algorithmRules()...)
	h := w.publishTo(t)
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
	w.eventually("every outbox is empty", func() (bool, string) {
		var n int64
		for p := range w.keys.Partitions {
			n += w.redis.XLen(ctx, w.keys.Outbox(p)).Val()
		}
		return n == 0, fmt.Sprint(n)
	})
	for key, n := range want {
		if got := w.used(key); got != n { // and no more, when all work is done
			t.Errorf("%s has used %d, expected %d", key, got, n)
		}
		w.eventually(key+" is told of", func() (bool, string) { return h.of(key) == toldToTheTop, h.of(key) })
	}
	if w.sample("partition_quarantined") != 0 || len(h.bad) != 0 {
		t.Errorf("partitions quarantined: %v; told of: %q", w.sample("partition_quarantined"), h.bad)
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
