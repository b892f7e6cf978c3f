package faults

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

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
		d.record.ledger.set(key, rand.Text(), units{cost, began.Add(lasts - rounding), epoch})
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

// stands reports whether id stands for certain.
func (l *ledger) stands(key, id string) bool {
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
