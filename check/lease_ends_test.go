package check

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// hookedRenewals call functions before and after each renewal.
type hookedRenewals struct {
	leaseStore
	before, after func()
}

func (s hookedRenewals) RenewLease(ctx context.Context, plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest,
) (reservations.Leased, error) {
	s.before()
	defer s.after()
	return s.leaseStore.RenewLease(ctx, plan, ttl, ask)
}

// slowRenewals reports when a renewal begins, and makes it wait.
func (one *lessee) slowRenewals() (begun <-chan struct{}, goOn chan struct{}) {
	begins, goOn := make(chan struct{}, 1), make(chan struct{})
	one.leases.held = hookedRenewals{one.leases.held, func() { begins <- struct{}{}; <-goOn }, func() {}}
	return begins, goOn
}

func TestLeasesEnd(t *testing.T) {
	c := streamtest.AnyRedis(t)
	for name, end := range map[string]func(l *lessees, one *lessee){
		"at its end":      func(l *lessees, _ *lessee) { l.advance(200) },
		"at a clean stop": func(_ *lessees, one *lessee) { one.Close() },
	} {
		t.Run("a rule that is gone ends it "+name, func(t *testing.T) {
			l, one := hotKey(t, c, 1)
			before := l.rules
			l.rules = rulesOf(t, rule("other:*", windows.Window{Limit: 1, Per: time.Second}))
			end(l, one)
			l.rules = before
			if used := l.used("k"); used == 0 || one.leases.Len() != 0 {
				t.Errorf("%d used, %d leases", used, one.leases.Len())
			}
		})
	}
	t.Run("a refund does not end it, a reset by its own process does", func(t *testing.T) {
		l, one := hotKey(t, c, 1)
		refund := Request{Key: "k", Plan: l.rules.Match("k"), Cost: 1, Refund: true}
		_, err := one.Decide(t.Context(), []Request{refund})
		testkit.Must(t, err)
		one.leases.Wait()
		if one.leases.Find("k") == nil {
			t.Error("it has ended with a refund")
		}
		_, err = one.Reset(t.Context(), "k")
		testkit.Must(t, err)
		one.leases.Wait()
		if one.leases.Find("k") != nil {
			t.Error("it goes on after a reset")
		}
	})
	t.Run("it is to end while it is renewed", func(t *testing.T) {
		l, one := hotKey(t, c, 1)
		begun, goOn := one.slowRenewals()
		over := one.leases.Find("k").Start(1)
		<-begun
		one.leases.changed("k", reset)
		close(goOn)
		<-begun // the next one, which ends it
		<-over
		if used := l.used("k"); used != lease.HotAsks+5 || one.leases.Find("k") != nil {
			t.Errorf("%d used, want %d and no lease", used, lease.HotAsks+5)
		}
	})
}

// override sets the override of a key in another process, or clears it, and lets this process load it.
func (l *lessees) override(one *lessee, key string, set api.Override) {
	l.t.Helper()
	by, ctx := l.other.NewOverrides(nil), context.Background()
	if set.Key = key; !set.Block && set.Windows == nil {
		_, err := by.Clear(ctx, key, "", "test", "")
		testkit.Must(l.t, err)
	} else {
		_, err := by.Set(ctx, l.rules.ValidateOverride, set, 0)
		testkit.Must(l.t, err)
	}
	testkit.Must(l.t, one.overrides.Poll(ctx))
}

// limitOf checks a key, and returns the limit of the decision and its source.
func (l *lessees) limitOf(one *lessee, key string) (int64, api.Source) {
	l.t.Helper()
	a, err := one.Check(context.Background(), api.CheckRequest{Key: key})
	testkit.Must(l.t, err)
	one.leases.Wait()
	if len(a.Windows) == 0 {
		return 0, a.Source
	}
	return a.Windows[0].Limit, a.Source
}

// A block denies no refund, which is then no reason to deny the other keys of the call.
func TestARefundOfABlockedKeyIsNotDenied(t *testing.T) {
	l := newLessees(t, streamtest.AnyRedis(t), streamtest.Prefix(t),
		rulesOf(t, rule("*", windows.Window{Limit: 5, Per: time.Second})), 1)
	one, plan := l.all[0], l.rules.Match("k")
	l.ask(one, "k", 3)
	l.override(one, "k", api.Override{Block: true})
	all, err := one.Decide(t.Context(), []Request{{Key: "k", Plan: plan, Cost: 2, Refund: true},
		{Key: "other", Plan: plan, Cost: 1}})
	testkit.Must(t, err)
	if !all.Allowed || all.RetryAfterMs != 0 || !all.Checks[0].Allowed || l.used("k") != 1 || l.used("other") != 1 {
		t.Errorf("%+v; used %d and %d", all, l.used("k"), l.used("other"))
	}
}

func TestOverridesEndLeases(t *testing.T) {
	more := api.Override{Windows: []api.OverrideWindow{{Limit: 5000, Per: "1s"}}}
	c := streamtest.AnyRedis(t)
	hot := func(t *testing.T) (*lessees, *lessee) {
		l, one := hotKey(t, c, 1)
		if limit, source := l.limitOf(one, "k"); limit != 1000 || source != api.SourceLease {
			t.Fatalf("limit %d, by %s", limit, source)
		}
		return l, one
	}
	t.Run("one that is set, cleared, and set until a time", func(t *testing.T) {
		l, one := hot(t)
		expect := func(when string, want int64) {
			t.Helper()
			for n := range lease.HotAsks + 5 {
				limit, source := l.limitOf(one, "k")
				if limit != want {
					t.Fatalf("%s, check %d: limit %d, by %s", when, n, limit, source)
				}
			}
			if limit, source := l.limitOf(one, "k"); limit != want || source != api.SourceLease {
				t.Errorf("%s: limit %d, by %s", when, limit, source)
			}
		}
		l.override(one, "k", more)
		expect("set", 5000)
		l.override(one, "k", api.Override{})
		expect("cleared", 1000)
		until := more
		until.UntilMs = l.clock + 30
		l.override(one, "k", until)
		expect("set until a time", 5000)
		l.clock += 30 // no renewal in between
		expect("after this time", 1000)
	})
	t.Run("a block", func(t *testing.T) {
		l, one := hot(t)
		l.override(one, "k", api.Override{Block: true})
		if _, source := l.limitOf(one, "k"); source != api.SourceOverride {
			t.Errorf("decided by %s", source)
		}
		l.advance(200)
		if used := l.used("k"); used != lease.HotAsks+6 || one.leases.Find("k") != nil {
			t.Errorf("%d used, want %d and no lease", used, lease.HotAsks+6)
		}
	})
	t.Run("one of another key does not", func(t *testing.T) {
		l, one := hot(t)
		l.override(one, "other", more)
		if limit, source := l.limitOf(one, "k"); limit != 1000 || source != api.SourceLease {
			t.Errorf("limit %d, by %s", limit, source)
		}
		one.leases.Find("k").Start(1)
		one.leases.Wait()
		if _, ok := one.answerHot(t.Context(), &api.CheckRequest{Key: "k"}); !ok {
			t.Error("after the next renewal the lease is not found without a lock")
		}
	})
}

// Activity has every answer, whatever its source.
func TestActivityHasLeases(t *testing.T) {
	c := streamtest.AnyRedis(t)
	l, one := hotKey(t, c, 1)
	for range 400 {
		l.ask(one, "k", 3)
	}
	l.advance(40)
	denied := int64(lease.HotAsks + 5 + 400)
	allowed := int64(len(l.admitted["k"]))
	denied -= allowed
	units := int64(0)
	for _, a := range l.admitted["k"] {
		units += a.units
	}
	if l.leased == 0 || l.answers["allowed k"] != allowed || l.answers["denied k"] != denied ||
		l.units["allowed k"] != units || l.units["denied k"] != 3*denied {
		t.Errorf("answers %v, units %v; %d allowed with %d units, %d denied", l.answers, l.units, allowed, units,
			denied)
	}
}

// silentRedis is a client of a server that takes commands and never answers.
func silentRedis(t *testing.T) *redis.Client {
	// A host name would be looked up, outside of the bubble.
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, ContextTimeoutEnabled: true,
		DisableIdentity: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			mine, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			return mine, nil
		}})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// No check waits longer than the deadline, whatever it waits for.
func TestLeasesKeepTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot := rule("*", windows.Window{Limit: 1000, Per: time.Minute})
		hot.Lease = 5 * time.Second
		s := newService(t, silentRedis(t), Config{Timeout: 250 * time.Millisecond,
			NoAnswer: func(err error) error { return err }}, hot)
		for n := range 2 * lease.HotAsks {
			began := time.Now()
			if _, err := s.Check(t.Context(), api.CheckRequest{Key: "k"}); err == nil {
				t.Fatal("a Redis that does not answer has answered")
			}
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Fatalf("check %d took %s", n, took)
			}
		}
		synctest.Wait()
		one := s.leases.Find("k")
		if one == nil || one.Grant() == nil {
			t.Fatal("no lease was asked for")
		}
		g, now := one.Grant(), time.Now()
		left := lease.Answer{Grant: g, Now: now}.RetryAfter() + g.Age(now)
		if left != hot.Lease {
			t.Errorf("no units are asked for for %s after Redis has not answered, want %s", left, hot.Lease)
		}
	})
}
