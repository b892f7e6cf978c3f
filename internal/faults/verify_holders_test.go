package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

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

// slotsBack: when the load has ended and the clock stands still, every slot is free.
// Holders that take all of them and are never heard of again keep them no longer
// than the lease.
func (d *driver) slotsBack(t testing.TB, seed uint64) {
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
			return taken() == 0, "they stand"
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
