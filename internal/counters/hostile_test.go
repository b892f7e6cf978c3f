package counters_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
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
