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
func (one *process) slowRenewals() (begun <-chan struct{}, goOn chan struct{}) {
	begins, goOn := make(chan struct{}, 1), make(chan struct{})
	one.leases.held = hookedRenewals{one.leases.held, func() { begins <- struct{}{}; <-goOn }, func() {}}
	return begins, goOn
}

func TestALeaseThatIsToEndWhileItIsRenewed(t *testing.T) {
	l, one := hotKey(t)
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
}

// override sets the override of a key in another process, or clears it, and lets this process load it.
func (l *processes) override(one *process, key string, set api.Override) {
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
