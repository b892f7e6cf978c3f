package transport

import (
	"context"
	"fmt"

	"github.com/streamcounter/streamcounter/api"
)

// Nth is the context of one of several checks that are each a call of their own: its
// idempotency key is made of that of all.
func Nth(ctx context.Context, i int) context.Context {
	key := api.IdempotencyKey(ctx)
	if key.Key == "" {
		return ctx
	}
	key.Key = fmt.Sprintf("%s.%d", key.Key, i)
	return api.WithIdempotency(ctx, key)
}
