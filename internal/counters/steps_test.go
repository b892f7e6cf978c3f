package counters_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// The methods here run steps, and expect what each writes to the outbox, for cases that a story (story_test.go)
// cannot test.

func (s *store) check(key string, cost int64) counters.Verdict {
	s.t.Helper()
	return s.ask(key, cost, "")
}

// ask checks a key in a mode.
func (s *store) ask(key string, cost int64, mode api.Mode) counters.Verdict {
	s.t.Helper()
	return s.decide(counters.Request{Plan: s.rules.Match(key), Key: key, Cost: cost, Mode: mode})
}

// decide checks several keys in one call.
func (s *store) decide(requests ...counters.Request) counters.Verdict {
	s.t.Helper()
	v, err := s.Check(context.Background(), requests)
	testkit.Must(s.t, err)
	return v
}

// decideMany checks several calls in one run.
func (s *store) decideMany(calls ...[]counters.Request) []counters.Verdict {
	s.t.Helper()
	got, err := s.serve.CheckMany(context.Background(), calls)
	testkit.Must(s.t, err)
	return got
}

func (s *store) peek(key string) windows.KeyState {
	s.t.Helper()
	st, err := s.Peek(context.Background(), s.rules.Match(key), key)
	testkit.Must(s.t, err)
	return st
}

func (s *store) reset(key string) (had bool) {
	s.t.Helper()
	had, err := s.Reset(context.Background(), s.rules.Match(key), key)
	testkit.Must(s.t, err)
	return had
}

// refund gives units back, and returns how many were given back.
func (s *store) refund(key string, units int64) (given int64, st windows.KeyState) {
	s.t.Helper()
	given, st, err := s.serve.Refund(context.Background(), s.rules.Match(key), key, units)
	testkit.Must(s.t, err)
	return given, st
}

// requests asks for as many units of each key.
func (s *store) requests(units int64, keys ...string) (list []counters.Request) {
	for _, key := range keys {
		list = append(list, counters.Request{Plan: s.rules.Match(key), Key: key, Cost: units})
	}
	return list
}

// reserve reserves as many units of each key.
func (s *store) reserve(id string, units int64, ttl time.Duration, keys ...string) (string, counters.Verdict) {
	s.t.Helper()
	requests := s.requests(units, keys...)
	id = s.held.ID(id, requests)
	got, err := s.held.Reserve(context.Background(), id, ttl, "f", requests)
	testkit.Must(s.t, err)
	return id, got.Verdict
}

// holds reserves units that there are.
func (s *store) holds(id string, units int64, ttl time.Duration, keys ...string) string {
	s.t.Helper()
	id, v := s.reserve(id, units, ttl, keys...)
	if !v.Allowed {
		s.t.Fatalf("a reservation: %+v", v)
	}
	return id
}

// leases takes units by the lease of a key that lasts so long, or renews it.
func (s *store) leases(key string, ttl time.Duration, ask api.LeaseRequest) int64 {
	s.t.Helper()
	ask.ID, ask.Key = s.held.ID(cmp.Or(ask.ID, "l"), s.requests(1, key)), key
	got, err := s.held.RenewLease(context.Background(), s.rules.Match(key), ttl, ask)
	testkit.Must(s.t, err)
	return got.Units
}

// settle commits, cancels or renews a reservation.
func (s *store) settle(op reservations.SettleOp, id string, cost int64, ttl time.Duration) reservations.SettleState {
	s.t.Helper()
	charge := func(string, int64) int64 { return cost }
	got, err := s.held.Settle(context.Background(), s.rules, id, s.keys.All(), op, ttl, charge)
	testkit.Must(s.t, err)
	return got.State
}

func (s *store) expect(want ...string) {
	s.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := gocmp.Diff(want, s.transitions(s.t)); diff != "" {
		s.t.Fatalf("transitions (-want +got):\n%s", diff)
	}
}

func (s *store) after(d time.Duration) {
	s.clock.ms += d.Milliseconds()
	s.sweep(s.t)
}

// due returns when the key is due to be swept, in ms from now; -1: never.
func (s *store) due(key string) int64 {
	s.t.Helper()
	score, err := s.redis.ZScore(context.Background(), s.keys.Due(s.keys.Partition(key)), key).Result()
	if err == redis.Nil {
		return -1
	}
	testkit.Must(s.t, err)
	return int64(score) - s.clock.ms
}

func apiRule(change func(*windows.Rule)) *windows.Rule {
	r := &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}},
		Alerts: []int{80, 95}, Hold: time.Second}
	if change != nil {
		change(r)
	}
	return r
}

var (
	repeatedText = regexp.MustCompile(`{([^{}]*)\*(\d+)}`)
	relativeTime = regexp.MustCompile(`NOW([+-]\d+)?`)
)

// arguments returns the arguments of a command of Redis: words with escapes of Go in them (\x20 is a space; ” is an
// empty word), {TEXT*3} for the text three times, and NOW-10 for ten milliseconds ago.
func (s *store) arguments(words []string) (list []any) {
	s.t.Helper()
	for _, word := range words {
		word = relativeTime.ReplaceAllStringFunc(word, func(at string) string {
			n, _ := strconv.ParseInt(strings.TrimPrefix(at, "NOW"), 10, 64)
			return strconv.FormatInt(s.clock.ms+n, 10)
		})
		word = repeatedText.ReplaceAllStringFunc(word, func(text string) string {
			m := repeatedText.FindStringSubmatch(text)
			n, err := strconv.Atoi(m[2])
			testkit.Must(s.t, err)
			return strings.Repeat(m[1], n)
		})
		text, err := strconv.Unquote(`"` + strings.TrimPrefix(word, "''") + `"`)
		testkit.Must(s.t, err)
		list = append(list, text)
	}
	return list
}

// place returns the name of a key in Redis: FORM:KEY is the counter of a key, and LEVELS@KEY is what the partition of
// a key has.
func (s *store) place(word string) string {
	name, key, ofPartition := strings.Cut(word, "@")
	if ofPartition {
		return fmt.Sprintf("%s:{%d}:%s", s.keys.Prefix, s.keys.Partition(key), name)
	}
	_, key, _ = strings.Cut(word, ":")
	return fmt.Sprintf("%s:{%d}:%s", s.keys.Prefix, s.keys.Partition(key), word)
}
