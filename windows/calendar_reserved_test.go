package windows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

func (x tale) reserve(id, key string, units int64, ttl time.Duration) (string, windows.Verdict) {
	x.t.Helper()
	requests := []windows.Request{{Plan: x.s.rules.Match(key), Key: key, Cost: units}}
	id = x.s.serve.ReservationID(id, requests)
	got, err := x.s.serve.Reserve(x.t.Context(), id, ttl, "f", requests)
	testkit.Must(x.t, err)
	return id, got.Verdict
}

func (x tale) settle(op lua.SettleOp, id string, cost int64, ttl time.Duration) {
	x.t.Helper()
	charge := func(string, int64) int64 { return cost }
	_, err := x.s.serve.Settle(x.t.Context(), x.s.rules, id, x.s.keys.All(), op, ttl, charge, "c")
	testkit.Must(x.t, err)
}

// What is reserved in a window that begins anew is charged in it when it expires, and is gone when that
// ends, not a whole window later.
func TestReservedUnitsLeaveWithTheirPeriod(t *testing.T) {
	for name, window := range map[string]string{
		"calendar":     "{limit: 10, per: month, zone: Europe/Berlin, starts: 15}",
		"fixed-window": "{limit: 10, per: 30d, algorithm: fixed-window}",
		"mixed": "{limit: 10, per: month, zone: Europe/Berlin, starts: 15}, {limit: 100, per: 1s, " +
			"algorithm: sliding-log-packed}",
	} {
		t.Run(name, func(t *testing.T) {
			eachRedis(t, nil, func(t *testing.T, s *store) {
				rules, err := windows.Parse("rules.yml", fmt.Appendf(nil,
					"rules:\n  - {name: budget, match: \"*\", windows: [%s]}", window))
				testkit.Must(t, err)
				s.rules = rules
				ends := (s.clock.ms/(30*86_400_000) + 1) * 30 * 86_400_000
				if c := rules.List()[0].Windows[0].Calendar; c.Unit != "" {
					_, ends = c.Period(s.clock.ms)
				}
				s.clock.ms = ends - 5000
				x := tale{t, s}
				x.reserve("a", "k", 6, time.Second)
				_, v := x.reserve("b", "k", 4, 2*time.Second)
				if w := v.Items[0].Windows[0]; !v.Allowed || w.NextFreeMs != 5000 || w.ResetMs != 5000 {
					t.Errorf("reserved: %+v", w)
				}
				if _, v := x.reserve("c", "k", 1, time.Second); v.Items[0].RetryAfter != 5*time.Second {
					t.Errorf("denied: %+v", v.Items[0])
				}
				x.after(3 * time.Second)
				if _, v := x.reserve("c", "k", 1, time.Second); v.Items[0].RetryAfter != 2*time.Second {
					t.Errorf("denied once all have expired: %+v", v.Items[0])
				}
				x.after(2 * time.Second)
				if _, v := x.reserve("c", "k", 10, time.Second); !v.Allowed {
					t.Errorf("in the next period: %+v", v.Items[0])
				}
			})
		})
	}
}

// Units that are charged before their reservation expires leave the window earlier than was said. So do
// those of a reservation that was renewed for a shorter time.
func TestACommitEndsAThrottleInTime(t *testing.T) {
	rule := apiRule(func(r *windows.Rule) { r.Alerts, r.Hold = nil, 0 })
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		id, v := x.reserve("a", "k", 10, time.Minute)
		if due := x.due("k"); !v.Allowed || due != 70_000 {
			t.Fatalf("%+v, due in %d ms", v, due)
		}
		x.after(time.Second)
		x.settle(lua.Renew, id, 0, 30*time.Second)
		if due := x.due("k"); due != 40_000 {
			t.Errorf("after it was renewed the throttle ends in %d ms", due)
		}
		x.settle(lua.Commit, id, 10, time.Minute)
		if due := x.due("k"); due != 10_000 {
			t.Errorf("after the commit the throttle ends in %d ms", due)
		}
		x.after(10 * time.Second)
		if v := x.check("k", 10); !v.Allowed {
			t.Errorf("%+v", v)
		}
	})
}

// A rule may have slots alone, and a penalty.
func TestAPenaltyOfSlots(t *testing.T) {
	rule := &windows.Rule{Name: "slots", Match: "*", Penalty: []time.Duration{time.Minute},
		Windows: []windows.Window{{Limit: 2, Per: 10 * time.Second, InFlight: true}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		id, v := x.reserve("a", "k", 2, 10*time.Second)
		if !v.Allowed {
			t.Fatalf("%+v", v)
		}
		x.settle(lua.Commit, id, 0, time.Minute)
		if _, v := x.reserve("b", "k", 1, time.Second); v.Allowed || v.Items[0].RetryAfter != time.Minute {
			t.Errorf("%+v", v)
		}
		x.after(time.Minute)
		if _, v := x.reserve("c", "k", 1, time.Second); !v.Allowed {
			t.Errorf("%+v", v)
		}
	})
}

// A reset that comes with the period before is asked again, and has removed nothing: the caller could be
// gone, and units of leases are to stay reserved.
func TestAResetOfALeasedKeyIsWholeOrNotAtAll(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, ends := monthly(t, s, 10)
		lease := windows.Lease{ID: "l", Key: "k", TTL: time.Minute}
		leased, err := s.serve.RenewLease(t.Context(), s.rules.Match("k"), lease, windows.Renewal{Want: 6})
		if err != nil || leased.Units != 6 {
			t.Fatal(leased, err)
		}
		x.check("k", 2)
		p := s.keys.Partition("k")
		before := lua.Counter{Name: s.keys.Counter(p, "calendar", "k"), Rule: &lua.Rule{Algorithm: lua.Calendar,
			Decides: 1, SpanMs: 1, Spec: "budget;month;0;0|1,1,100=1",
			Windows: []lua.Window{{Ms: 1000, Limit: 10, Lowest: 10, ID: 1, FromMs: ends - 2000}}}}
		s.clock.ms = ends + 1
		_, _, err = lua.Reset(t.Context(), s.redis, lua.CheckPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p),
			Outbox: s.keys.Outbox(p)}, lua.Now(s.clock.ms), s.keys.Holds(p, "k"), []lua.Counter{before}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "PERIOD") {
			t.Fatal(err)
		}
		if n := s.redis.Exists(t.Context(), before.Name).Val(); n != 1 {
			t.Error("the counter is gone, and with it the mark of what is reserved")
		}
		had, err := s.serve.Reset(t.Context(), s.rules.Match("k"), "k")
		if n := used(t, s, "k"); !had || err != nil || n != 6 {
			t.Errorf("used %d after a reset, expected the 6 units of the lease; %v", n, err)
		}
	})
}
