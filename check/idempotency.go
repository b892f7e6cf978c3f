package check

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
)

// replayOf returns how Redis remembers the calls of one request by its idempotency key, and nil without a key. form is
// "all" if the calls are decided all or nothing, else "each".
func (s *Service) replayOf(ctx context.Context, form string, calls ...*call) *counters.Replay {
	key := api.IdempotencyKey(ctx)
	if key.Key == "" {
		return nil
	}
	retention := s.config.Retention
	if key.Retention > 0 && key.Retention < retention {
		retention = key.Retention
	}
	return &counters.Replay{Key: key.Key, Fingerprint: fingerprint(form, calls), Retention: retention}
}

// setReplay gives a call the replay of call i of a request. Redis remembers only charges: no call that charges nothing,
// and no units that are given back.
func (c *call) setReplay(m *counters.Replay, i int) {
	if m == nil || len(c.byKey) == 0 {
		return
	}
	own := *m
	if i > 0 {
		own.Key += " " + strconv.Itoa(i) // a caller's key has no space
	}
	c.byKey[0].Replay = &own
}

// fingerprint returns 128 bits of a SHA-256 of the form of the request and what it asks for. They differ between
// requests for different things.
func fingerprint(form string, calls []*call) string {
	text := []byte(form)
	for _, c := range calls {
		for _, r := range c.requests {
			text = binary.AppendVarint(binary.AppendUvarint(text, uint64(len(r.Key))), r.Cost)
			text = append(append(text, r.Key...), r.Mode.Or(api.ModeTake)[0])
			if len(r.Values) > 0 {
				text = fmt.Appendf(text, "%q", r.Values) // in the order of their names
			}
		}
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

var (
	errOtherBody = fmt.Errorf("%w: a request with another body had this %s", api.ErrIdempotencyKeyReused,
		api.IdempotencyHeader)
	errOtherReservation = fmt.Errorf("%w: the idempotency key was used for another reservation",
		api.ErrIdempotencyKeyReused)
)

// reservationPrefix returns the beginning of the id of a reservation, and a fingerprint of what it asks for.
func reservationPrefix(ctx context.Context, reqs []api.CheckRequest, ttlMs int64) (prefix, fingerprint string) {
	if !api.Repeatable(ctx) {
		return strings.ToLower(rand.Text()), "-"
	}
	return hash("reservation", api.IdempotencyKey(ctx).Key), hash(reqs, ttlMs)
}
