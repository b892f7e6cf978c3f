package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
)

// withKey puts the key of the request's header, if there is one, into the request's context.
func withKey(r *http.Request) (*http.Request, error) {
	values := r.Header.Values(api.IdempotencyHeader)
	if len(values) == 0 {
		return r, nil
	}
	if len(values) > 1 {
		return r, fmt.Errorf("%w: %s is given %d times", api.ErrBadIdempotencyKey, api.IdempotencyHeader, len(values))
	}
	key, err := api.ParseIdempotency(values[0])
	if err != nil {
		return r, err
	}
	return r.WithContext(api.WithIdempotency(r.Context(), key)), nil
}

// once makes it safe to send an append of events again. Each event without an id gets an id that is made of the
// request's key and the event's line, so that workers count it once. The fingerprint of the body is stored in Redis
// before anything is appended.
func (s *Server) once(r *http.Request, body []byte, events []api.Event, lines []int) error {
	key := api.IdempotencyKey(r.Context())
	if key.Key == "" {
		return nil
	}
	sum := sha256.Sum256(body)
	same, err := s.config.Log.Once(r.Context(), key.Key, base64.RawURLEncoding.EncodeToString(sum[:16]))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	case !same:
		return fmt.Errorf("%w: a request with another body had this %s", api.ErrIdempotencyKeyReused,
			api.IdempotencyHeader)
	}
	for i := range events {
		if events[i].ID == "" {
			events[i].ID = fmt.Sprintf("%s %d", key.Key, lines[i]) // no key has a space
		}
	}
	return nil
}
