package activity

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// system is a prefix with processes that record what a test says.
type system struct {
	redis redis.UniversalClient
	keys  *stream.Keys
	now   time.Time
}

func newSystem(t *testing.T, c redis.UniversalClient) *system {
	return &system{redis: c, keys: streamtest.Keys(t, 4), now: time.UnixMilli(1_700_000_000_000).Truncate(time.Minute)}
}

func (s *system) process(t *testing.T, name string) *Recorder {
	testkit.Must(t, s.redis.HSet(t.Context(), s.keys.Processes(), name, "announced").Err())
	return NewRecorder(Config{Redis: s.redis, Keys: s.keys, Process: name, Command: "serve",
		Now: func() time.Time { return s.now }, Log: slog.New(slog.DiscardHandler)})
}

func (s *system) gather(t *testing.T, all ...*Recorder) Activity {
	for _, r := range all {
		testkit.Must(t, r.Publish(t.Context()))
	}
	a, err := Gather(t.Context(), s.redis, s.keys)
	testkit.Must(t, err)
	return a
}

// top returns the busiest keys as text: "user:1 5, user:2 3-4" if one may have more.
func top(a Activity, n int) string {
	var out []string
	for _, k := range a.Top("api", n).Keys {
		text := fmt.Sprintf("%s %d", k.Key, k.Units)
		if k.AtMost != k.Units {
			text += fmt.Sprintf("-%d", k.AtMost)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func TestTopOfSeveralProcesses(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		s := newSystem(t, c)
		serve, work := s.process(t, "serve a"), s.process(t, "work b")
		serve.Checks("api", "user:1", 1, 2, true)
		serve.Checks("api", "user:1", 1, 3, false)
		serve.Checks("other", "ip:1", 1, 9, true)
		work.Events("api", "user:2", 4, 40)
		work.Throttled(map[string]int64{"api": 7})
		a := s.gather(t, serve, work)
		if got := top(a, 10); got != "user:2 40, user:1 5" {
			t.Error(got)
		}
		if one := a.Processes[0].Counts["api"]; one != (Counts{Allowed: 1, Denied: 1}) {
			t.Errorf("%+v", one)
		}
		if one := a.Processes[1].Counts["api"]; one != (Counts{Events: 4, Units: 40, Throttled: 7}) {
			t.Errorf("%+v", one)
		}
		if got := strings.Join(a.Rules(), " "); got != "api other" {
			t.Error(got)
		}
		if got := a.Top("api", 1); got.UnlistedAtMost != 5 || got.Units != 45 || len(got.Keys) != 1 {
			t.Errorf("%+v", got)
		}

		// The previous minute counts, the one before that does not.
		s.now = s.now.Add(time.Minute)
		s.gather(t, serve)
		serve.Checks("api", "user:2", 1, 1, true)
		if got := top(s.gather(t, serve, work), 10); got != "user:2 41, user:1 5" {
			t.Error(got)
		}
		s.now = s.now.Add(time.Minute)
		if got := top(s.gather(t, serve, work), 10); got != "user:2 1" {
			t.Error(got)
		}
		s.now = s.now.Add(5 * time.Minute)
		if a := s.gather(t, serve, work); top(a, 10) != "" || a.Top("api", 1).SinceMs != 0 {
			t.Errorf("%+v", a.Top("api", 1))
		}
		if ttl := c.PTTL(t.Context(), s.keys.Activity("serve a")).Val(); ttl <= 0 || ttl > expires {
			t.Errorf("what a process published expires in %v", ttl)
		}
		testkit.Must(t, c.Set(t.Context(), s.keys.Activity("work b"), "foreign", 0).Err())
		testkit.Must(t, c.HSet(t.Context(), s.keys.Processes(), "gone", "announced").Err())
		if a := s.gather(t, serve); len(a.Processes) != 1 {
			t.Errorf("%+v", a.Processes)
		}
	})
}

// A process that stops is removed at once from what is gathered.
func TestRunRemovesWhatItPublished(t *testing.T) {
	s := newSystem(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()))
	r := s.process(t, "serve a")
	stop := testkit.Background(t, r.Run)
	published := func() (bool, string) {
		return s.redis.Exists(t.Context(), s.keys.Activity("serve a")).Val() == 1, "there is nothing"
	}
	streamtest.Eventually(t, "the process publishes", published)
	stop()
	if ok, _ := published(); ok {
		t.Error("it is still there")
	}
}

// However many rules and keys there are, what is recorded and published is bounded.
func TestRecordersAreBounded(t *testing.T) {
	s := newSystem(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()))
	r := s.process(t, "serve a")
	for rule := range 2 * maxRules {
		for key := range 100 {
			r.Checks("rule-"+strconv.Itoa(rule), strings.Repeat("k", 500)+strconv.Itoa(key), 1, 1, true)
		}
	}
	a := s.gather(t, r)
	if n := len(a.Processes[0].Counts); n != maxRules {
		t.Errorf("%d rules are recorded, want %d", n, maxRules)
	}
	if n := s.redis.StrLen(t.Context(), s.keys.Activity("serve a")).Val(); n > 4<<20 {
		t.Errorf("%d bytes are published", n)
	}
}

// Rules that are not used any more, because they have other names since a reload, make room for rules that are used.
func TestUnusedRulesMakeRoom(t *testing.T) {
	s := newSystem(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()))
	r := s.process(t, "serve a")
	for rule := range maxRules {
		r.Checks("rule-"+strconv.Itoa(rule), "user:1", 1, 1, true)
	}
	used := func(names ...string) string {
		s.gather(t, r) // as it does every second
		for _, name := range names {
			r.Checks(name, "user:1", 1, 1, true)
		}
		return strings.Join(s.gather(t, r).Rules(), " ")
	}
	s.now = s.now.Add(time.Minute)
	if got := used("rule-1", "new"); strings.Contains(got, "new") || strings.Count(got, " ") != maxRules-1 {
		t.Errorf("while all are in use: %s", got)
	}
	s.now = s.now.Add(time.Minute)
	used("rule-2") // of the others only rule-1 was used within these two minutes
	if got := used("new"); got != "new rule-1 rule-2" {
		t.Errorf("recorded are %.100s", got)
	}
	if a := s.gather(t, r); a.Processes[0].Counts["rule-1"].Allowed != 2 {
		t.Errorf("rule-1 lost its counts: %+v", a.Processes[0].Counts["rule-1"])
	}
}

// It is known how many units a key that a process does not list has at most.
func TestTopOfTruncatedLists(t *testing.T) {
	s := newSystem(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()))
	a, b := s.process(t, "serve a"), s.process(t, "serve b")
	for i := range listedKeys + 10 {
		a.Checks("api", "user:"+strconv.Itoa(i), 1, int64(1000-i), true)
	}
	b.Checks("api", "user:0", 1, 5, true)
	b.Checks("api", "rare", 1, 600, true) // with less than a's list ends with
	all := s.gather(t, a, b)
	rest := 1000 - listedKeys // what the first that a does not list has
	if got, want := top(all, 2), "user:0 1005, user:1 999"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	keys := all.Top("api", 100).Keys
	if last := keys[len(keys)-1]; last.Key != "rare" || last.AtMost != int64(600+rest) {
		t.Errorf("%+v", last)
	}
}

func TestTopAddsWhatListsMissed(t *testing.T) {
	api := &ruleReport{Minutes: []minuteCount{{Total: 20, Beyond: 3, Unlisted: 10, Keys: []count{{"user:1", 5}}},
		{Total: 4, Unlisted: 1}}}
	a := Activity{Processes: []Process{newProcess("a", report{Rules: map[string]*ruleReport{"api": api}})}}
	if got := a.Top("api", 5); got.Keys[0].AtMost != 5+3+1 || got.UnlistedAtMost != 11 || got.Units != 24 {
		t.Errorf("%+v", got)
	}
}

// The units of a key are between the returned number and the returned maximum, whatever comes in whatever order. No
// more keys are kept than the bound.
func TestSketchKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, exact := newSketch(), map[string]int64{}
		keys := rapid.IntRange(1, 8*sketchKeys).Draw(t, "keys")
		step := rapid.IntRange(1, 97).Draw(t, "step")
		units := rapid.SliceOfN(rapid.Int64Range(1, 1000), 1, 20).Draw(t, "units")
		for i := range 6 * sketchKeys {
			key := strconv.Itoa(i * i / step % keys)
			n := units[i%len(units)]
			s.add(key, n)
			exact[key] += n
			if len(s.counters) > 2*sketchKeys {
				t.Fatalf("%d keys are kept", len(s.counters))
			}
		}
		list := rapid.IntRange(1, 60).Draw(t, "list")
		top, beyond, unlisted := s.list(list)
		if s.missed > s.total/sketchKeys {
			t.Fatalf("%d units are missed of %d", s.missed, s.total)
		}
		luck := int64(0) // three times what is said: no run of any test goes beyond that
		if s.skip > 1 {
			luck = 2 * skipsBound * s.skip
		}
		listed := map[string]bool{}
		for _, one := range top {
			listed[one.Key] = true
			if n := exact[one.Key]; n < one.Units || n > one.Units+beyond+luck {
				t.Fatalf("%s had %d, said are %d to %d", one.Key, n, one.Units, one.Units+beyond)
			}
		}
		for key, n := range exact {
			if !listed[key] && n > unlisted+luck {
				t.Fatalf("%s had %d and is not listed, said is at most %d", key, n, unlisted)
			}
		}
	})
}

// With very many keys, the rare ones are counted by chance. The bounds of each key hold anyway, here for a fixed
// random sequence. Without the room for chance they would not hold.
func TestSketchOfManyKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s, exact := newSketch(), map[string]int64{}
	s.random = random.Int64N
	zipf := rand.NewZipf(random, 1.05, 20, 200_000)
	for range 1_000_000 {
		key := strconv.FormatUint(zipf.Uint64(), 10)
		s.add(key, 1)
		exact[key]++
	}
	top, beyond, unlisted := s.list(50)
	if s.skip < 2 || s.total != 1_000_000 || beyond > s.total/100 {
		t.Fatalf("skip %d, total %d, beyond %d", s.skip, s.total, beyond)
	}
	needed := false
	listed := map[string]bool{}
	for i, one := range top {
		n := exact[one.Key]
		if listed[one.Key] = true; n < one.Units || n > one.Units+beyond {
			t.Errorf("%s had %d, said are %d to %d", one.Key, n, one.Units, one.Units+beyond)
		}
		if i < 10 && n < exact["30"] {
			t.Errorf("%s is among the first ten", one.Key)
		}
	}
	for key, n := range exact {
		if c := s.counters[key]; c != nil && n > *c+s.missed {
			needed = true
		}
		if !listed[key] && n > unlisted {
			t.Errorf("%s had %d and is not listed, said is at most %d", key, n, unlisted)
		}
		if c := s.counters[key]; c != nil && n > *c+beyond {
			t.Errorf("%s had %d, counted are %d and at most %d more", key, n, *c, beyond)
		}
	}
	if !needed {
		t.Error("no key missed more than shrinking took: the test shows nothing")
	}
}
