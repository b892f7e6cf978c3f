package check

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Processes whose clocks and replies differ find the same moments by Redis's clock, a window and a bit after a
// moment there is another, and none is far from when it was to be.
func TestRenewalsNearTheLimitAreAligned(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(from, to int64, what string) time.Duration {
			return time.Duration(rapid.Int64Range(from, to).Draw(rt, what)) * time.Millisecond
		}
		window := ms(100, 100_000, "window")
		hot := rule("*", windows.Window{Limit: 1000, Per: window})
		hot.Lease = min(ms(10, 10_000, "lease"), window)
		plan := rulesOf(t, hot).Match("k")
		redisMs, phase := rapid.Int64Range(1<<40, 1<<41).Draw(rt, "redis"), rapid.Int64Range(0, 1<<32).Draw(rt, "phase")
		in := pace(plan)
		moment := func(g *grant) (time.Duration, bool) { // by Redis's clock, since redisMs
			at := g.answered.Add(in - time.Duration(g.state.NowMs-redisMs)*time.Millisecond)
			to := g.align(at)
			if off := to.Sub(at); off.Abs() > in*3/4+1 {
				rt.Errorf("%v from when it was to be, a pace is %v", off, in)
			}
			return to.Sub(g.answered) + time.Duration(g.state.NowMs-redisMs)*time.Millisecond, to != at
		}
		answered := time.Unix(1_700_000_000, rapid.Int64Range(0, 1e9).Draw(rt, "answered"))
		one := &grant{plan: plan, phase: phase, answered: answered, state: windows.KeyState{NowMs: redisMs}}
		other := &grant{plan: plan, phase: phase, answered: answered.Add(ms(-5000, 5000, "apart")),
			state: windows.KeyState{NowMs: redisMs + rapid.Int64Range(0, 3).Draw(rt, "later")}}
		a, moved := moment(one)
		b, alsoMoved := moment(other)
		if moved && alsoMoved && (a-b).Abs() > 1 {
			rt.Errorf("%v and %v by Redis's clock", a, b)
		}
	})
}

// lateRenewals are answered 60 ms after Redis did.
type lateRenewals struct {
	*windows.Redis
	clock *int64
	asked *int
}

func (s lateRenewals) RenewLease(ctx context.Context, plan *windows.Plan, one windows.Lease, ask windows.Renewal) (
	windows.Leased, error) {
	got, err := s.Redis.RenewLease(ctx, plan, one, ask)
	*s.clock += 60
	*s.asked++
	return got, err
}

// nearlyFree gives a process that has a lease of a key whose window is full by others for 10 ms more, and whose
// renewals are answered 60 ms late.
func nearlyFree(t *testing.T) (l *lessees, one *lessee, renewals *int) {
	t.Helper()
	hot := rule("*", windows.Window{Limit: 1000, Per: time.Second})
	hot.Lease = 100 * time.Millisecond
	l = newLessees(t, streamtest.Connect(t, streamtest.Redis(t)), streamtest.Prefix(t), rulesOf(t, hot), 0)
	one, renewals = l.start(), new(int)
	begun := l.clock
	for range 2 * hotAsks {
		l.ask(one, "k", 1)
	}
	if one.leases.find("k") == nil {
		t.Fatal("it has no lease")
	}
	l.clock += 200 // what it had is charged by the next renewal
	l.charge("k", 1000)
	l.clock = begun + 1190 // 10 ms before those are free, and all else is
	one.leases.counter = lateRenewals{one.leases.counter.(*windows.Redis), &l.clock, renewals}
	return l, one, renewals
}

// charge has others use units, whatever there is room for.
func (l *lessees) charge(key string, units int64) {
	_, err := l.other.Check(context.Background(), []windows.Request{{Plan: l.rules.Match(key), Key: key, Cost: units,
		Mode: api.ModeCharge}})
	testkit.Must(l.t, err)
}

// Who waited for a renewal is decided by it, though it came later than the next one is due.
func TestARenewalDecidesWhoWaitedForIt(t *testing.T) {
	_, one, renewals := nearlyFree(t)
	a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
	testkit.Must(t, err)
	one.leases.running.Wait()
	if a.Allowed || a.Source != api.SourceLease || a.RetryAfterMs != 1 || *renewals != 1 {
		t.Errorf("%+v after %d renewals", a, *renewals)
	}
	if a, err = one.Check(t.Context(), api.CheckRequest{Key: "k"}); err != nil || !a.Allowed {
		t.Errorf("%+v, %v once they are free", a, err)
	}
}

// Who came while its answer was under way, after the pause that it asks for, is decided by the next one.
func TestARenewalDoesNotDecideWhoCameLongAfterIt(t *testing.T) {
	for after, allowed := range map[time.Duration]bool{20 * time.Millisecond: false, 50 * time.Millisecond: true} {
		l, one, renewals := nearlyFree(t)
		came := one.denials.now().Add(after)
		lease := one.leases.find("k")
		<-lease.start(1)
		asks := []windows.Request{{Plan: l.rules.Match("k"), Key: "k", Cost: 1, Mode: api.ModeTake}}
		d, ok := one.leases.answer(t.Context(), &call{asks: asks}, came, time.Now().Add(time.Minute))
		one.leases.running.Wait()
		if !ok || d.Allowed != allowed {
			t.Errorf("after %v: %+v, %v, with %d renewals", after, d, ok, *renewals)
		}
	}
}

// Whose units came when the lease was over, as the answer took so long, is not told that there were none.
func TestUnitsThatComeTooLate(t *testing.T) {
	hot := rule("*", windows.Window{Limit: 1000, Per: time.Second})
	hot.Lease = 10 * time.Millisecond
	l := newLessees(t, streamtest.Connect(t, streamtest.Redis(t)), streamtest.Prefix(t), rulesOf(t, hot), 0)
	one, late := l.start(), 0
	l.charge("k", 970)
	one.leases.counter = lateRenewals{one.leases.counter.(*windows.Redis), &l.clock, &late}
	for range 2 * hotAsks {
		a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
		testkit.Must(t, err)
		one.leases.running.Wait()
		if !a.Allowed {
			t.Fatalf("%+v, though the key has room", a)
		}
		if late > 0 {
			return
		}
	}
	t.Error("it took no lease")
}

// A renewal that is not answered is awaited for a part of the time that a check may take: Redis is asked then.
func TestARenewalThatIsNotAnswered(t *testing.T) {
	l, one := hotKey(t, streamtest.Connect(t, streamtest.Redis(t)), 1)
	one.config.Timeout = 4 * time.Second
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	one.leases.counter = slowRenewals{one.leases.counter.(*windows.Redis), begun, goOn}
	l.clock += 1000
	a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
	if err != nil || a.Source != api.SourceRedis {
		t.Errorf("%+v, %v", a, err)
	}
	<-begun
	close(goOn)
	one.leases.running.Wait()
}
