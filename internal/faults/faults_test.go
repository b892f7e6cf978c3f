package faults

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// setting reads a number from the environment.
func setting(t testing.TB, name string, def uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a whole number", name, text)
	}
	return n
}

// TestFaults runs the load and causes faults for MINUTES (10 s without it, 30 s in CI). Then it waits
// until everything is at rest, and verifies the counts.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed, minutes := setting(t, "SEED", 1), setting(t, "MINUTES", 0)
	lasts := time.Duration(minutes) * time.Minute
	if minutes == 0 {
		lasts = time.Duration(setting(t, "STREAMCOUNTER_TEST_FAULTS_S", 10)) * time.Second
	}
	t.Logf("SEED=%d MINUTES=%d", seed, minutes)
	s := newSystem(t, 3)
	s.minutes = minutes
	guard, tap := startGuard(t, s), startTap(t, s)
	d := &driver{s: s, record: newRecord()}

	stop := d.start(seed)
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	struck := inflict(ctx, s, seed, d.record)
	// On a busy machine, a check may have no answer in time while there are faults.
	streamtest.Eventually(t, "each kind of load had an answer", d.loaded)
	stop()
	s.rest()
	d.lateAtRest(tap, seed)
	d.clearOverrides(t)
	d.record.ledger.stepped()
	s.drained()
	d.slotsBack(t, seed)
	s.drained()

	v := &verdict{t: t, rec: d.record, tap: tap, logs: s.logs(), alerts: s.alerts()}
	v.verifyEvents()
	v.verifyChecks()
	v.verifyHolders()
	levels := v.verifyAlerts()
	v.verifyTap()
	twice := tap.crossedTwice()
	over := v.verifyValues(s)
	v.end()
	throttled := v.verifyGuard(guard)

	t.Logf("events: %d acknowledged, %d unknown, %d deleted with their stream before they were counted; checks: %d "+
		"answered, %d units granted; %d without an answer in all; alerts: %d, in %d keys, %d of which crossed "+
		"their limit twice at one millisecond; %d keys throttled at the end, as the guard knows",
		numbers(d.record.acked), numbers(d.record.unknown), numbers(d.record.excused), d.checks.Load(),
		d.record.granted(),
		d.errors.Load(), levels, len(v.alerts), twice, throttled)
	t.Logf("different values: %d checks granted, %d denied while the clock was not stepped, %d keys with more than "+
		"their limit", d.valued.Load(), len(d.record.denials), over)
	t.Logf("%d reservations granted; %d checks with an idempotency key; %d checks of keys in an operator's hand; "+
		"%d reloads, %d grants of the rule that changes, %d from leases", d.holds.Load(), d.again.Load(),
		d.operated.Load(), d.reloads.Load(), d.moved.Load(), d.leased.Load())
	for _, name := range slices.Sorted(maps.Keys(struck)) {
		t.Logf("%4d  %s", struck[name], name)
	}
	rare := d.leased.Load() > 0 && d.valued.Load() > 0 && over > 0
	if levels == 0 || twice == 0 || throttled == 0 || minutes > 0 && !rare {
		t.Error("there was no load: the run proves nothing")
	}
	for _, f := range faults {
		if struck[f.name] == 0 && minutes > 0 && (f.name != "clock stepped" || s.clock != nil) {
			t.Errorf("%s never struck", f.name)
		}
	}
}
