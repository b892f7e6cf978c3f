package transport

import (
	"context"

	"github.com/streamcounter/streamcounter/api"
)

// validateKey refuses the idempotency key of a context, if it has one, that no server accepts.
func validateKey(ctx context.Context) error {
	if !api.Repeatable(ctx) {
		return nil
	}
	return api.IdempotencyKey(ctx).Validate()
}
