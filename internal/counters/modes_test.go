package counters_test

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// answered is the answer to a call with an idempotency key.
type answered struct {
	fingerprint string
	counters.Verdict
}

func (l *timeline) chargesDenied() bool { return l.rule.OnDeny == windows.OnDenyCharge }

// many sends several calls at once, each with one or both keys: to take, to look, or to
// charge what happened anyway, some with an idempotency key. They are answered as if they had
// come one after the other.
func (l *timeline) many() {
	var calls [][]counters.Request
	n, seen := rapid.SampledFrom([]int{1, 1, 1, 2, 4, 6}).Draw(l.T, "calls"), map[string]bool{}
	for i := range n {
		calls = append(calls, l.call())
		// A call with the same idempotency key as another call of the run is answered after all others.
		if first := &calls[i][0]; first.Replay != nil {
			if seen[first.Replay.Key] && i < n-1 {
				first.Replay = nil
			} else {
				seen[first.Replay.Key] = true
			}
		}
	}
	got := l.ask(calls)
	for n, asks := range calls {
		if l.answeredBefore(asks, got[n]) {
			continue
		}
		l.compareCall(asks, got[n], n == len(calls)-1)
		if key := asks[0].Replay; key != nil && key.Retention > 0 {
			l.remembered[key.Key] = answered{key.Fingerprint, got[n]}
		}
	}
	if last := got[len(got)-1]; !last.Replayed && !last.OtherBody {
		for i, a := range calls[len(calls)-1] {
			l.compare(a.Key, last.Items[i])
		}
	}
}

// call draws one call.
func (l *timeline) call() (asks []counters.Request) {
	charge := rapid.IntRange(0, 3).Draw(l.T, "charge") == 0
	for i := range rapid.IntRange(1, 2).Draw(l.T, "keys") {
		key, mode := l.keys[i], api.ModeCharge
		if i == 0 && rapid.Bool().Draw(l.T, "other") {
			key = l.keys[1]
		}
		if !charge {
			mode = rapid.SampledFrom([]api.Mode{"", api.ModeTake, api.ModeTake, api.ModeLook}).Draw(l.T, "mode")
		}
		most := l.rule.Smallest()
		if mode == api.ModeLook || charge || l.chargesDenied() {
			most *= 2
		}
		asks = append(asks, counters.Request{Plan: l.plan, Key: key, Mode: mode,
			Cost: rapid.Int64Range(0, most).Draw(l.T, "cost")})
	}
	if len(asks) == 2 && asks[0].Key == asks[1].Key {
		asks = asks[:1]
	}
	if l.s.serve == nil || rapid.Bool().Draw(l.T, "without a key") {
		return asks
	}
	if l.remembered == nil {
		l.remembered = map[string]answered{}
	}
	key := &counters.Replay{Key: fmt.Sprintf("%s-%d", l.keys[0], rapid.IntRange(1, 4).Draw(l.T, "idempotency")),
		Fingerprint: "f"}
	for _, a := range asks {
		key.Fingerprint += fmt.Sprint("/", a.Key, a.Cost, a.Mode)
	}
	if rapid.IntRange(0, 4).Draw(l.T, "reads") > 0 {
		key.Retention = time.Hour
	}
	asks[0].Replay = key
	return asks
}

// answeredBefore reports whether an earlier call had the same idempotency key. If so, the verdict must
// be that of the earlier call, or say that the body was another.
func (l *timeline) answeredBefore(asks []counters.Request, v counters.Verdict) bool {
	if asks[0].Replay == nil {
		return false
	}
	before, known := l.remembered[asks[0].Replay.Key]
	same := before.fingerprint == asks[0].Replay.Fingerprint
	if v.Replayed != (known && same) || v.OtherBody != (known && !same) {
		l.Fatalf("replayed %v, of another body %v; the key was used: %v, for the same: %v", v.Replayed, v.OtherBody,
			known, same)
	}
	if v.Replayed && (v.Allowed != before.Allowed || !reflect.DeepEqual(v.Items, before.Items)) {
		l.Fatalf("answered before: %+v, now %+v", before.Verdict, v)
	}
	return known
}

// compareCall compares the verdict of one call with the recount, and counts what it charged. The
// waits are exact to the millisecond only after the last call of a run.
func (l *timeline) compareCall(asks []counters.Request, v counters.Verdict, last bool) {
	allowed, admits := true, make([]bool, len(asks))
	for i, a := range asks {
		admits[i] = room(l.oracle, a.Key, l.oracle.Clock(a.Key, l.s.clock.ms), max(1, a.Cost), l.limits)
		allowed = allowed && admits[i]
	}
	if v.Allowed != allowed || !v.Atomic {
		l.Fatalf("%v: allowed %v, atomic %v, recount says %v", asks, v.Allowed, v.Atomic, allowed)
	}
	for i, a := range asks {
		now := l.oracle.Clock(a.Key, l.s.clock.ms)
		counts := a.Mode == api.ModeCharge || a.Mode != api.ModeLook && (allowed || l.chargesDenied())
		if counts && a.Cost > 0 {
			l.oracle.Add(a.Key, now, a.Cost)
		}
		for w, limit := range l.limits {
			if used, has := l.oracle.Used(a.Key, now, limit.Ms), v.Items[i].Windows[w].Used; used != has {
				l.Fatalf("%v: used %d, recount says %d", asks, has, used)
			}
		}
		l.compareWait(a, v, i, admits[i], last)
	}
}

func (l *timeline) compareWait(a counters.Request, v counters.Verdict, i int, admits, last bool) {
	now, retry := l.oracle.Clock(a.Key, l.s.clock.ms), v.Items[i].RetryAfter.Milliseconds()
	cost := max(1, a.Cost)
	switch {
	case a.Mode == api.ModeCharge:
		if (retry == 0) != admits {
			l.Fatalf("%v: retry after %d ms, recount says %v", a, retry, admits)
		}
		cost = 1
	case !v.Allowed && l.chargesDenied() && a.Mode != api.ModeLook && a.Cost > 0:
		admits = room(l.oracle, a.Key, now, cost, l.limits) // after its charge
	case admits != (retry == 0):
		l.Fatalf("%v: retry after %d ms, recount says %v", a, retry, admits)
	}
	switch {
	case !last || admits:
	case cost > l.rule.Smallest():
		if retry != -1 {
			l.Fatalf("%v: retry after %d ms, expected never", a, retry)
		}
	case room(l.oracle, a.Key, now+retry-1, cost, l.limits) || !room(l.oracle, a.Key, now+retry, cost, l.limits):
		l.Fatalf("%v: retry after %d ms is not when %d are admitted", a, retry, cost)
	}
}

// refund gives units back if the count is exact. The recount removes the oldest units of
// the longest window, and from then on all must be as if they had never been counted.
func (l *timeline) refund(key string) (st windows.KeyState, done bool) {
	if l.s.serve == nil || l.noRefunds || !lua.IsExact(l.rule.Algorithm) {
		return st, false
	}
	n := rapid.Int64Range(1, 2*l.rule.Smallest()).Draw(l.T, "units")
	now := l.oracle.Clock(key, l.s.clock.ms)
	given, st, err := l.s.serve.Refund(context.Background(), l.plan, key, n)
	testkit.Must(l, err)
	if want := l.oracle.GiveBack(key, now, l.span, n); given != want {
		l.Fatalf("%d of %d units given back, recount says %d", given, n, want)
	}
	return st, true
}
