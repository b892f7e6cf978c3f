package client

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// denialAge is how long a denial is remembered at most, since it was asked for. The server's
// own knowledge may be 40 ms old (--denial-cache): what gives units back early is known here within 50 ms.
const denialAge = 10 * time.Millisecond

// denials remembers keys that were denied: a window frees units only with time, so who is denied n
// units is denied as many, and more, until the wait has passed.
type denials struct {
	now func() time.Time // monotonic

	mu   sync.Mutex
	keys *simplelru.LRU[string, *denial]
}

type denial struct {
	api.CheckAnswer
	asked, answered time.Time
}

// newDenials gives nil where none are to be remembered.
func newDenials(keys int) *denials {
	if keys == 0 {
		return nil
	}
	d := &denials{now: time.Now}
	d.keys, _ = simplelru.NewLRU[string, *denial](keys, nil) // the error is for a size below 1
	return d
}

// start is when a check is asked for.
func (d *denials) start() (asked time.Time) {
	if d != nil {
		asked = d.now()
	}
	return asked
}

// remember notes an answer to what was asked for at `asked`. A denial without a wait is that of
// another key of the call. What shadow rules say of later checks is not known, nor whether another value is admitted.
func (d *denials) remember(a api.CheckAnswer, asked time.Time) {
	if d == nil || a.Allowed || a.Charged || a.Replayed || a.RetryAfterMs <= 0 || len(a.Shadow) > 0 ||
		a.Source != api.SourceRedis && a.Source != api.SourceCache ||
		slices.ContainsFunc(a.Windows, api.WindowState.OfValues) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys.Add(a.Key, &denial{a, asked, d.now()})
}

// answer gives that to a call of which a key is denied for certain. Of its other keys nothing is
// known. What is no valid request the transport refuses.
func (d *denials) answer(reqs []api.CheckRequest) (all api.ChecksAnswer, ok bool) {
	if d == nil {
		return all, false
	}
	reqs, err := transport.ValidateAll(reqs)
	if err != nil || reqs[0].Mode == api.ModeCharge { // what happened is counted by the server
		return all, false
	}
	all = api.ChecksAnswer{Atomic: true, Checks: make([]api.CheckAnswer, len(reqs))}
	for i, r := range reqs {
		a, denied := d.lookup(r)
		if !denied {
			a = api.CheckAnswer{Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{}, Source: api.SourceCache,
				Note: "not asked for: another key of the call is denied"}
		}
		ok = ok || denied
		all.Checks[i], all.RetryAfterMs = a, max(all.RetryAfterMs, a.RetryAfterMs)
	}
	return all, ok
}

// lookup gives the answer to a check that is denied for certain. A cost above a limit is the
// server's to refuse.
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
		a.Windows[i] = a.WindowInForce(w.After(passed), w.NextFreeMs-passed) // w has how long that lasts
	}
	return a, true
}
