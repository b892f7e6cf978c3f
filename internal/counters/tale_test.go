package counters_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// tale runs steps against a store and expects what each writes to the outbox, for cases
// that a story (testdata/stories) cannot test.
type tale struct {
	t testing.TB
	s *store
}

func (x tale) check(key string, cost int64) counters.Verdict {
	x.t.Helper()
	v, err := x.s.Check(context.Background(), []counters.Request{{Plan: x.s.rules.Match(key), Key: key, Cost: cost}})
	testkit.Must(x.t, err)
	return v
}

// ask checks a key in a mode.
func (x tale) ask(key string, cost int64, mode api.Mode) counters.Verdict {
	x.t.Helper()
	v, err := x.s.Check(context.Background(), []counters.Request{{Plan: x.s.rules.Match(key), Key: key, Cost: cost,
		Mode: mode}})
	testkit.Must(x.t, err)
	return v
}

// refund gives units back, and returns how many were given back.
func (x tale) refund(key string, units int64) (given int64, st windows.KeyState) {
	x.t.Helper()
	given, st, err := x.s.serve.Refund(context.Background(), x.s.rules.Match(key), key, units)
	testkit.Must(x.t, err)
	return given, st
}

// requests asks for as many units of each key.
func (x tale) requests(units int64, keys ...string) (list []counters.Request) {
	for _, key := range keys {
		list = append(list, counters.Request{Plan: x.s.rules.Match(key), Key: key, Cost: units})
	}
	return list
}

// reserve reserves as many units of each key.
func (x tale) reserve(id string, units int64, ttl time.Duration, keys ...string) (string, counters.Verdict) {
	x.t.Helper()
	requests := x.requests(units, keys...)
	id = x.s.held.ID(id, requests)
	got, err := x.s.held.Reserve(context.Background(), id, ttl, "f", requests)
	testkit.Must(x.t, err)
	return id, got.Verdict
}

// holds reserves units that there are.
func (x tale) holds(id string, units int64, ttl time.Duration, keys ...string) string {
	x.t.Helper()
	id, v := x.reserve(id, units, ttl, keys...)
	if !v.Allowed {
		x.t.Fatalf("a reservation: %+v", v)
	}
	return id
}

// leases takes units by a lease of k that lasts so long, or renews it.
func (x tale) leases(ttl time.Duration, had int64, ask reservations.Renewal) int64 {
	x.t.Helper()
	one := reservations.Lease{ID: x.s.held.ID("l", x.requests(1, "k")), Key: "k", TTL: ttl, Units: had}
	got, err := x.s.held.RenewLease(context.Background(), x.s.rules.Match("k"), one, ask)
	testkit.Must(x.t, err)
	return got.Units
}

// settle commits, cancels or renews a reservation.
func (x tale) settle(op lua.SettleOp, id string, cost int64, ttl time.Duration) lua.SettleState {
	x.t.Helper()
	charge := func(string, int64) int64 { return cost }
	got, err := x.s.held.Settle(context.Background(), x.s.rules, id, x.s.keys.All(), op, ttl, charge, "c")
	testkit.Must(x.t, err)
	return got.State
}

func (x tale) expect(want ...string) {
	x.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, x.s.transitions(x.t)); diff != "" {
		x.t.Fatalf("transitions (-want +got):\n%s", diff)
	}
}

func (x tale) after(d time.Duration) {
	x.s.clock.ms += d.Milliseconds()
	x.s.sweep(x.t)
}

// due returns when the key is due to be swept, in ms from now; -1: never.
func (x tale) due(key string) int64 {
	x.t.Helper()
	score, err := x.s.redis.ZScore(context.Background(), x.s.keys.Due(x.s.keys.Partition(key)), key).Result()
	if err == redis.Nil {
		return -1
	}
	testkit.Must(x.t, err)
	return int64(score) - x.s.clock.ms
}

func apiRule(change func(*windows.Rule)) *windows.Rule {
	r := &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}},
		Alerts: []int{80, 95}, Hold: time.Second}
	if change != nil {
		change(r)
	}
	return r
}
