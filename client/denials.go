package client

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// denialAge is how long a denial is remembered at most, since it was asked for. The server's own denial may be 40 ms
// old (--denial-cache), so units that come back early are noticed here within 50 ms.
const denialAge = 10 * time.Millisecond

// denials remembers keys that were denied: a window frees units only with time, so a key that is denied n units is
// denied n or more until the wait has passed.
type denials struct {
	now func() time.Time // monotonic

	mu   sync.Mutex
	keys *simplelru.LRU[string, *denial]
}

type denial struct {
	api.CheckAnswer
	asked, answered time.Time
}

// newDenials returns nil if no keys are remembered.
func newDenials(keys int) *denials {
	if keys == 0 {
		return nil
	}
	d := &denials{now: time.Now}
	d.keys, _ = simplelru.NewLRU[string, *denial](keys, nil) // the error is for a size below 1
	return d
}

// start returns the time at which a check is asked for.
func (d *denials) start() (asked time.Time) {
	if d != nil {
		asked = d.now()
	}
	return asked
}

// remember stores the answer to a check that was asked for at `asked`, if it is a denial. It does not store a denial
// without a wait, because another key of the call caused it. It does not store the answer to a look, which does not say
// whether the rule counts denied checks. It does not store answers with shadow rules or values, because it is not known
// what shadow rules say about later checks, or whether another value is admitted.
func (d *denials) remember(mode api.Mode, a api.CheckAnswer, asked time.Time) {
	if d == nil || mode.Or(api.ModeTake) != api.ModeTake || a.Allowed || a.Charged || a.Replayed ||
		a.RetryAfterMs <= 0 || len(a.Shadow) > 0 ||
		a.Source != api.SourceRedis && a.Source != api.SourceCache ||
		slices.ContainsFunc(a.Windows, api.WindowState.OfValues) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.keys.Peek(a.Key); ok && asked.Before(known.asked) {
		return
	}
	d.keys.Add(a.Key, &denial{a, asked, d.now()})
}

// charged ends what is remembered of the key of an answer, if the key was charged.
func (d *denials) charged(mode api.Mode, a api.CheckAnswer) {
	if mode != api.ModeLook && (a.Allowed || a.Charged || mode == api.ModeCharge) {
		d.end(a.Key)
	}
}

// end ends what is remembered of a key: this client has charged it, so its wait can be longer. A denial that was asked
// for before now is not remembered afterwards, because the server may have decided it before the charge. If nothing is
// remembered of the key, this is one look-up.
func (d *denials) end(key string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.keys.Peek(key); ok {
		d.keys.Add(key, &denial{CheckAnswer: api.CheckAnswer{Cost: math.MaxInt64}, asked: d.now()})
	}
}

// answer returns the answer to a call if all of its keys are denied for certain. For any other key it is not known
// whether its rule counts denied checks. Invalid requests are left to the transport, which refuses them. A call that
// gives a key twice is left to the server, which adds the costs up.
func (d *denials) answer(ctx context.Context, reqs []api.CheckRequest) (all api.ChecksAnswer, ok bool) {
	if d == nil || api.MayRepeat(ctx) { // the server has the earlier answer
		return all, false
	}
	reqs, err := transport.ValidateAll(ctx, reqs)
	if err != nil || reqs[0].Mode == api.ModeCharge { // the server counts what happened
		return all, false
	}
	all = api.ChecksAnswer{Atomic: true, Checks: make([]api.CheckAnswer, len(reqs))}
	for i, r := range reqs {
		a, denied := d.lookup(r)
		if !denied || slices.ContainsFunc(reqs[:i], func(o api.CheckRequest) bool { return o.Key == r.Key }) {
			return api.ChecksAnswer{}, false
		}
		all.Checks[i], all.RetryAfterMs = a, max(all.RetryAfterMs, a.RetryAfterMs)
	}
	return all, true
}

// lookup returns the answer to a check that is denied for certain. A cost above a limit is left to the server, which
// refuses it.
func (d *denials) lookup(req api.CheckRequest) (a api.CheckAnswer, ok bool) {
	d.mu.Lock()
	one, ok := d.keys.Get(req.Key)
	d.mu.Unlock()
	if !ok || req.Cost < one.Cost {
		return a, false
	}
	now := d.now()
	// The server decided after asked, within the millisecond that Redis's clock showed.
	age := now.Sub(one.asked)
	if age >= denialAge || age >= time.Duration(one.RetryAfterMs-1)*time.Millisecond {
		return a, false
	}
	passed := now.Sub(one.answered).Milliseconds()
	a = one.CheckAnswer
	a.Cost, a.Source, a.RetryAfterMs = req.Cost, api.SourceCache, a.RetryAfterMs-passed
	a.Windows = slices.Clone(a.Windows)
	for i, w := range a.Windows {
		if req.Cost > w.Limit {
			return a, false
		}
		a.Windows[i] = a.WindowInForce(w.After(passed), w.NextFreeMs-passed) // w.NextFreeMs has how long that lasts
	}
	return a, true
}
