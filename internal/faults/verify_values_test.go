package faults

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func countsValues(key string) bool { return formOf(key) == "d" || formOf(key) == "v" }

// clockMayBeOff is how much earlier than its ID an event may have counted where Redis's clock was stepped: one of the
// future counts as of now.
const clockMayBeOff = 61_000 // ms

// seen is when a value was seen last, in ms: at low at least, and at high at most.
type seen struct{ low, high int64 }

// recount goes through a key's log in the order in which Redis counted: a plain map of value to when it was last seen.
// It calls before for each entry.
func (v *verdict) recount(key string, before func(e entry, t *touch, values map[string]seen)) map[string]seen {
	off, values := int64(0), map[string]seen{}
	if v.rec.ledger.now() > 1 { // the last epoch begins when the load has ended
		off = clockMayBeOff
	}
	for _, e := range v.logs[key] {
		t := v.rec.touched[key][e.count]
		if t == nil {
			continue // verifyEvents tells of it
		}
		before(e, t, values)
		at := seen{e.ms, e.ms}
		if !t.check {
			at = seen{t.low - off, min(t.high, e.ms)}
		}
		was := values[t.value]
		values[t.value] = seen{max(was.low, at.low), max(was.high, at.high)}
	}
	return values
}

// held is how many values are in a window that ends at ms, for certain and at most.
func held(values map[string]seen, ms, per int64) (certain, most int) {
	for s := range maps.Values(values) {
		if s.low > ms-per {
			certain++
		}
		if s.high > ms-per {
			most++
		}
	}
	return certain, most
}

// verifyValues: a check with a new value was granted only with room for it, one with a value that the window had was
// never denied, and at the end each window is what the recount says. It gives how many have more than their limit.
func (v *verdict) verifyValues(s *system) (over int) {
	v.t.Helper()
	per := valuesPer.Milliseconds()
	ends := map[string]map[string]seen{}
	for key := range v.logs {
		if !countsValues(key) {
			continue
		}
		ends[key] = v.recount(key, func(e entry, t *touch, values map[string]seen) {
			certain, _ := held(values, e.ms, per)
			if known := values[t.value].high > e.ms-per; t.check && !known && certain >= valuesLimit {
				v.fail(key, "%s: check %d was granted to a new value beside %d others, the limit is %d", key, e.count,
					certain, valuesLimit)
			}
		})
	}
	v.verifyDenials()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for key, values := range ends {
		if len(values) > 0 && v.verifyWindow(s, client, key, values) {
			over++
		}
	}
	return over
}

// verifyDenials compares each denial with the values that were seen in the window's time before it.
func (v *verdict) verifyDenials() {
	v.t.Helper()
	per := valuesPer.Milliseconds()
	for _, d := range v.rec.denials {
		others := map[string]bool{}
		for _, e := range v.logs[d.key] {
			t := v.rec.touched[d.key][e.count]
			if t == nil {
				continue
			}
			low, high := t.low, min(t.high, e.ms)
			if t.check {
				low, high = e.ms, e.ms
				if t.value == d.value && e.ms < d.began && e.ms > d.ended-per {
					v.fail(d.key, "%s: a check of %s was denied at %d, and the value was seen at %d", d.key, d.value,
						d.ended, e.ms)
				}
			}
			if high > d.began-per && low <= d.ended {
				others[t.value] = true
			}
		}
		if len(others) < valuesLimit {
			v.fail(d.key, "%s: a check was denied between %d and %d beside %d values, the limit is %d", d.key, d.began,
				d.ended, len(others), valuesLimit)
		}
	}
}

// verifyWindow compares the server's answer with the recount. It tells whether the window has more than its limit.
func (v *verdict) verifyWindow(s *system, client *http.Client, key string, values map[string]seen) bool {
	v.t.Helper()
	now := func() int64 {
		at, err := s.admin.Time(context.Background()).Result()
		testkit.Must(v.t, err)
		return at.UnixMilli()
	}
	limit := int64(valuesOfDay)
	if formOf(key) == "v" {
		limit = touchedLimit
	}
	before := now()
	got, err := s.windowOf(client, key)
	testkit.Must(v.t, err)
	after := now()
	var lows, highs []int64
	for at := range maps.Values(values) {
		lows, highs = append(lows, at.low), append(highs, at.high)
	}
	slices.Sort(lows)
	slices.Sort(highs)
	used, n := min(int64(len(values)), limit+1), len(values)
	// Times count from now, or from the newest value where that is later: the clock was stepped back.
	from, to := max(before, lows[n-1]), max(after, highs[n-1])
	next, empty := lows[n-int(used)]+dayMs-to, lows[n-1]+dayMs-to
	nextMost, emptyMost := highs[n-int(used)]+dayMs-from, highs[n-1]+dayMs-from
	if got.Used != used || got.NextFreeMs < next || got.NextFreeMs > nextMost || got.EmptyMs < empty ||
		got.EmptyMs > emptyMost {
		v.fail(key, "%s has %+v; a recount of %d values says %d used, next free in %d to %d, empty in %d to %d", key,
			got, n, used, next, nextMost, empty, emptyMost)
	}
	return used > limit
}

// levels gives what the window with levels of a key held at each entry of its log, and its limit.
func (v *verdict) levels(key string) (amounts []int64, limit int64) {
	values, limit := map[string]bool{}, int64(eventLimit)
	for _, e := range v.logs[key] {
		if t := v.rec.touched[key][e.count]; t != nil {
			values[t.value], limit = true, touchedLimit
			e.total = int64(len(values))
		}
		amounts = append(amounts, e.total)
	}
	return amounts, limit
}
