package faults

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// Keys that are reserved: s: have slots in flight, t: are never charged above what
// was reserved, to: are.
const (
	slotLimit   = 5
	slotFor     = 3 * time.Second
	reservedFor = time.Second
	slotKeys    = 4
	holders     = 24
	answersIn   = 10 * time.Second // so long an end is sent again after the load has ended
	rounding    = 2 * time.Millisecond
)

// formOf is what stands before the first colon.
func formOf(key string) string {
	form, _, _ := strings.Cut(key, ":")
	return form
}

// limitOf is what can be taken of a key at once; 0 for those that only events count on.
func limitOf(key string) int64 {
	switch formOf(key) {
	case "s":
		return slotLimit
	case "o": // exempt at times
		return unlimited
	case "c", "i", "t", "to", "m":
		return checkLimit
	case "l":
		return leasedLimit
	}
	return 0
}

// holder reserves, and then commits less, as much or more, cancels, renews, or
// never comes back.
type holder struct {
	d      *driver
	client *http.Client
	random *rand.Rand
}

func (d *driver) hold(ctx context.Context, random *rand.Rand) {
	loop(ctx, random, 5, 40, func(client *http.Client) { holder{d, client, random}.once(ctx) })
}

// reserved is a reservation that was granted.
type reserved struct {
	key, id string
	units   int64
	ttl     time.Duration
}

func (h holder) once(ctx context.Context) {
	r := reserved{key: fmt.Sprintf("s:%d", h.random.IntN(slotKeys)), units: 1, ttl: slotFor}
	if n := h.random.IntN(3); n > 0 {
		r = reserved{key: fmt.Sprintf("%s:%d", []string{"t", "to"}[n-1], h.random.IntN(2)),
			units: 1 + h.random.Int64N(8), ttl: reservedFor}
	}
	if !h.reserve(ctx, &r) {
		return
	}
	for ended := h.random.IntN(4) == 0; !ended; ended = h.random.IntN(3) > 0 {
		if !pause.For(ctx, time.Duration(h.random.IntN(300))*time.Millisecond) {
			break
		}
		if h.random.IntN(3) == 0 && !h.renew(r) {
			return
		}
	}
	switch h.random.IntN(6) {
	case 0: // it never comes back: charged as reserved
		h.d.charged(r.key, r.units, r.units)
	case 1:
		h.settle(ctx, r, "", 0)
	default:
		cost := h.random.Int64N(r.units + 1)
		if !strings.HasPrefix(r.key, "t:") {
			cost += h.random.Int64N(4)
		}
		h.settle(ctx, r, "/commit", cost)
	}
}

// reserve asks once, or, with an idempotency key, until there is an answer.
func (h holder) reserve(ctx context.Context, r *reserved) bool {
	began, epoch := time.Now(), h.d.record.ledger.now()
	body := fmt.Sprintf(`{"key":%q,"cost":%d,"ttl_ms":%d}`, r.key, r.units, r.ttl.Milliseconds())
	name := ""
	if h.random.IntN(2) == 0 {
		name = fmt.Sprintf("%x", h.random.Uint64())
	}
	for {
		var got api.Reservation
		status, err := h.send(ctx, "POST", "", body, name, &got)
		switch {
		case err == nil && status == http.StatusCreated:
			r.id = got.ID
			h.d.record.ledger.set(r.key, r.id, units{r.units, began.Add(r.ttl - rounding), epoch})
			h.d.holds.Add(1)
			return true
		case err == nil && status == http.StatusTooManyRequests:
			return false
		case err == nil && status == http.StatusConflict: // it was made, and has expired meanwhile
			h.d.charged(r.key, r.units, r.units)
			return false
		}
		if name == "" || !pause.For(ctx, 50*time.Millisecond) {
			h.d.charged(r.key, 0, r.units)
			return false
		}
	}
}

// renew reports whether the reservation may still be open.
func (h holder) renew(r reserved) bool {
	began, epoch, wasOpen := time.Now(), h.d.record.ledger.now(), h.d.record.ledger.isOpen
	status, err := h.send(context.Background(), "POST", r.id+"/renew", "", "", nil)
	switch {
	case err == nil && status == http.StatusOK:
		h.d.record.ledger.set(r.key, r.id, units{r.units, began.Add(r.ttl - rounding), epoch})
	case err == nil && status == http.StatusGone:
		if wasOpen(r.key, r.id) {
			h.d.record.ledger.fail(r.key, "%s: reservation %s expired before its time", r.id)
		}
		h.d.charged(r.key, r.units, r.units)
		return false
	}
	return true
}

// settle commits or cancels until there is an answer, and then now and then once more.
func (h holder) settle(ctx context.Context, r reserved, verb string, cost int64) {
	wasOpen := h.d.record.ledger.isOpen(r.key, r.id)
	h.d.record.ledger.drop(r.key, r.id)
	method, body := "POST", fmt.Sprintf(`{"cost":%d}`, cost)
	if verb == "" {
		method, body = "DELETE", ""
	}
	began, epoch := time.Now(), h.d.record.ledger.now()
	until, answered := time.Time{}, 0
	for {
		status, err := h.send(context.Background(), method, r.id+verb, body, "", nil)
		switch {
		case err == nil && (status == http.StatusOK || status == http.StatusGone && answered == 0):
			if status == http.StatusGone {
				cost = r.units
			} else if verb != "" && wasOpen && !strings.HasPrefix(r.key, "s:") {
				h.d.record.ledger.set(r.key, "charged "+r.id,
					units{min(cost, r.units), began.Add(checkPer - rounding), epoch})
			}
			if answered == 0 {
				h.d.charged(r.key, cost, cost)
			}
			answered++
			if status == http.StatusGone || answered > 1 || h.random.IntN(4) > 0 {
				return
			}
		case err == nil && (answered > 0 || status == http.StatusNotFound || status == http.StatusConflict):
			h.d.record.ledger.fail(r.key, "%s: the answer to %s%s was %d after %d times 200", r.id, verb, status,
				answered)
			return
		case answered > 0:
			return
		}
		if until.IsZero() && ctx.Err() != nil {
			until = time.Now().Add(answersIn)
		}
		if !until.IsZero() && time.Now().After(until) {
			h.d.charged(r.key, 0, max(cost, r.units))
			return
		}
		pause.For(context.Background(), 50*time.Millisecond)
	}
}

// send gives the status of an answer that says what happened; anything else is an error.
func (h holder) send(ctx context.Context, method, path, body, name string, into any) (int, error) {
	return answerTo(ctx, h.client, method, h.d.s.base+"/v1/reservations"+strings.TrimRight("/"+path, "/"), body, name,
		into)
}

// answerTo sends a request and decodes the answer.
func answerTo(ctx context.Context, client *http.Client, method, url, body, name string, into any) (int, error) {
	status, text, err := textOf(ctx, client, method, url, body, name)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return status, err
}

// textOf sends a request, under an idempotency key if name is one. An answer of 500 and
// above is an error: whether it was done is not known.
func textOf(ctx context.Context, client *http.Client, method, url, body, name string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if name != "" {
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%q", name))
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 500 {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return resp.StatusCode, text, err
}

// charged records that key was charged low units at least, and high at most.
func (d *driver) charged(key string, low, high int64) {
	d.record.mu.Lock()
	defer d.record.mu.Unlock()
	if low > 0 {
		d.record.allowed[key] += low
	}
	d.record.maybe[key] += high - low
}

// open tells of the reservations that stand, and when they are to be swept.
func (s *system) open() (list []string, err error) {
	ctx := context.Background()
	now, err := s.admin.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	for p := range s.keys.Partitions {
		records, err := s.admin.HGetAll(ctx, s.keys.Reservations(p)).Result()
		if err != nil {
			return nil, err
		}
		for id, text := range records {
			if strings.HasPrefix(text, "open\n") {
				due, err := s.admin.ZScore(ctx, s.keys.Due(p), "\n"+id).Result()
				list = append(list, fmt.Sprintf("%s %q, due %.0f (%v), now %d", id, text, due, err, now.UnixMilli()))
			}
		}
	}
	return list, nil
}

// wantSlotsFree checks that every slot is free after the load has ended. Then holders take all slots and do not give
// them back: they keep the slots no longer than the window's time.
func (d *driver) wantSlotsFree(t testing.TB, seed uint64) {
	t.Helper()
	h := holder{d, &http.Client{Timeout: 5 * time.Second}, rand.New(rand.NewPCG(seed, 600))}
	keys := make([]string, slotKeys)
	for n := range keys {
		keys[n] = fmt.Sprintf("s:%d", n)
	}
	taken := func() (n int64) {
		for _, key := range keys {
			n += d.record.ledger.takenOf(key)
		}
		return n
	}
	for range 2 {
		streamtest.Eventually(t, "every slot is free", func() (bool, string) {
			for _, key := range keys {
				for range slotLimit {
					r := reserved{key: key, units: 1, ttl: slotFor}
					if h.reserve(context.Background(), &r) {
						d.charged(key, 1, 1)
					}
				}
				if n := d.record.ledger.takenOf(key); n < slotLimit {
					return false, fmt.Sprintf("%s: %d of %d slots were given", key, n, slotLimit)
				}
			}
			return true, ""
		})
		streamtest.Eventually(t, "the holders' leases end", func() (bool, string) {
			return taken() == 0, "they are open"
		})
	}
}

// verifyHolders tells what the holders' own record says while the run lasts.
func (v *verdict) verifyHolders() {
	v.t.Helper()
	l := v.rec.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.wrong {
		v.fail(b.key, b.format, b.args...)
	}
	for key := range maps.Keys(l.most) {
		if limit := limitOf(key); limit < unlimited && l.most[key] < limit/2 {
			v.t.Logf("%s: no more than %d of %d were taken at once", key, l.most[key], limitOf(key))
		}
	}
}

// ledger is the holders' own record of what is taken of each key: reservations
// that stand for certain, and what commits have charged within the last window.
// It knows too little rather than too much, so whatever is above a limit by it is
// above the limit in Redis.
type ledger struct {
	mu    sync.Mutex
	epoch int // of Redis's clock: each step of it begins another
	taken map[string]map[string]units
	most  map[string]int64 // key → the most that was taken at once
	wrong []broken
}

// checkNoted checks a key. Units that it is granted are taken for at least `lasts` from when the check was sent.
func (d *driver) checkNoted(client *http.Client, key string, cost int64, lasts time.Duration) (api.CheckAnswer, error) {
	began, epoch := time.Now(), d.record.ledger.now()
	a, err := d.checkOne(context.Background(), client, key, cost, "")
	if err == nil && outcomeOf(a) == granted {
		d.record.ledger.set(key, cryptorand.Text(), units{cost, began.Add(lasts - rounding), epoch})
	}
	return a, err
}

// broken is a promise that was seen broken while the run lasted.
type broken struct {
	key, format string
	args        []any
}

// units of a key are taken until then for certain, if the clock is not stepped.
type units struct {
	n     int64
	until time.Time
	epoch int
}

func newLedger() *ledger {
	return &ledger{taken: map[string]map[string]units{}, most: map[string]int64{}}
}

// stepped is called before and after a step of Redis's clock: what was taken may
// have expired by it.
func (l *ledger) stepped() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
}

// now is the epoch that a request begins in.
func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// set has u taken of key by id, in place of what was taken by it before.
func (l *ledger) set(key, id string, u units) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken[key] == nil {
		l.taken[key] = map[string]units{}
	}
	l.taken[key][id] = u
	sum := l.sum(key)
	l.most[key] = max(l.most[key], sum)
	if limit := limitOf(key); sum > limit {
		l.wrong = append(l.wrong, broken{key, "%s: %d units are reserved and charged at once, the limit is %d",
			[]any{key, sum, limit}})
	}
}

// sum is what is taken of key now. It is called with mu held.
func (l *ledger) sum(key string) (sum int64) {
	for id, u := range l.taken[key] {
		if u.epoch != l.epoch || !time.Now().Before(u.until) {
			delete(l.taken[key], id)
			continue
		}
		sum += u.n
	}
	return sum
}

// takenOf is what is taken of key now.
func (l *ledger) takenOf(key string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum(key)
}

// drop takes id out of the record, before it is settled.
func (l *ledger) drop(key, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taken[key], id)
}

// isOpen reports whether a reservation is certainly open.
func (l *ledger) isOpen(key, id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, ok := l.taken[key][id]
	return ok && u.epoch == l.epoch && time.Now().Before(u.until)
}

// fail records a broken promise.
func (l *ledger) fail(key, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, broken{key, format, append([]any{key}, args...)})
}
