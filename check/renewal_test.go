package check

import (
	"context"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// lateRenewals makes renewals be answered some time after Redis has answered.
func (l *processes) lateRenewals(one *process, late time.Duration) {
	one.leases.held = hookedRenewals{one.leases.held, func() {}, func() { l.clock += late.Milliseconds() }}
}

// charge makes others use units, even if there is no room for them.
func (l *processes) charge(key string, units int64) {
	_, err := l.other.Check(context.Background(), []counters.Request{{Plan: l.rules.Match(key), Key: key, Cost: units,
		Mode: api.ModeCharge}})
	testkit.Must(l.t, err)
}

// A call that came while the answer of a renewal was under way, but after the pause that it asks for, is decided by
// the next renewal.
func TestARenewalDoesNotDecideWhoCameLongAfterIt(t *testing.T) {
	for after, allowed := range map[time.Duration]bool{20 * time.Millisecond: false, 50 * time.Millisecond: true} {
		l, one := hotKey(t)
		begun := l.clock
		l.clock += 200 // what it had is charged by the next renewal
		l.charge("k", 1000)
		l.clock = begun + 1190 // 10 ms before those are free, and all else is
		l.lateRenewals(one, 60*time.Millisecond)
		came := one.denials.now().Add(after)
		held := one.leases.Find("k")
		<-held.Start(1)
		asks := []counters.Request{{Plan: l.rules.Match("k"), Key: "k", Cost: 1, Mode: api.ModeTake}}
		d, ok := one.leases.decide(t.Context(), &call{asks: asks}, came, time.Now().Add(time.Minute))
		one.leases.Wait()
		if !ok || d.Allowed != allowed {
			t.Errorf("after %v: %+v, %v", after, d, ok)
		}
	}
}

// A call waits for a renewal that is not answered for only a part of the time that a check may take. Then the check
// goes to Redis.
func TestARenewalThatIsNotAnswered(t *testing.T) {
	l, one := hotKey(t)
	one.config.Timeout = 4 * time.Second
	begun, goOn := one.slowRenewals()
	l.clock += 1000
	a, err := one.Check(t.Context(), api.CheckRequest{Key: "k"})
	if err != nil || a.Source != api.SourceRedis {
		t.Errorf("%+v, %v", a, err)
	}
	<-begun
	close(goOn)
	one.leases.Wait()
}
