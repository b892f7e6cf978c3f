package inprocess

import "testing"

// The totals of a log that never pauses stay as small as the units that it has.
func TestLogTotalsStaySmall(t *testing.T) {
	var l log
	const span, count = 1000, 1_000_000_000_000
	for now := int64(1); now < 20_000; now++ {
		l.trim(now, span)
		l.add(now, count)
		if used, first := l.sum(now, span); now >= span && (used != span*count || first != now-span+1) {
			t.Fatalf("at %d: used %d from %d", now, used, first)
		}
	}
	if l.total() > 2*span*count || len(l.entries) > 2*span {
		t.Fatalf("total %d in %d entries", l.total(), len(l.entries))
	}
}
