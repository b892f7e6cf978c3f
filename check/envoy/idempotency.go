package envoy

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/api"
)

var idempotencyMetadata = strings.ToLower(api.IdempotencyHeader)

// withKey gives the context the idempotency key of its metadata, if there is one.
func withKey(ctx context.Context) (context.Context, error) {
	values := metadata.ValueFromIncomingContext(ctx, idempotencyMetadata)
	if len(values) == 0 {
		return ctx, nil
	}
	key, err := api.ParseIdempotency(values[0])
	return api.WithIdempotency(ctx, key), err
}
