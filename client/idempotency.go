package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Idempotent is a Checker that takes idempotency keys from the context (api.WithIdempotency): a check with the key of
// an earlier one charges nothing again and has the same answer. HTTP, grpc.Client and direct.Redis are Idempotent.
type Idempotent interface {
	Checker
	TakesIdempotency() bool
}

// TakesIdempotency implements Idempotent.
func (h *HTTP) TakesIdempotency() bool { return true }

// repeatable gives the context of a call a key, if it has none. It reports whether the call
// may be sent again while its outcome is not known.
func (s *shared) repeatable(ctx context.Context) (context.Context, bool) {
	if c, ok := s.checker.(Idempotent); !ok || !c.TakesIdempotency() {
		return ctx, false
	}
	if !api.Repeatable(ctx) && (s.config.NoIdempotency || s.config.Retries < 0) {
		return ctx, false
	}
	return withKey(ctx, max(rememberFor, 2*s.config.Timeout)), true
}

// withKey gives the context a random key, if it has none. send marks each later attempt as one that is not the first.
func withKey(ctx context.Context, retention time.Duration) context.Context {
	if api.Repeatable(ctx) {
		return ctx
	}
	return api.WithIdempotency(ctx, api.Idempotency{Key: rand.Text(), Retention: retention, First: true})
}

// makeRepeatable adds the key of the context to a request, if the context has a valid one. The calls that use the key
// have refused an invalid one before.
func makeRepeatable(ctx context.Context, req *http.Request) {
	if key := api.IdempotencyKey(ctx); key.Validate() == nil {
		req.Header.Set(api.IdempotencyHeader, key.Header())
		req.GetBody = nil // net/http repeats a request with this header if it can read the body again
	}
}
