package grpc

import (
	"context"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// TakesIdempotency implements client.Idempotent.
func (g *Client) TakesIdempotency() bool { return true }

// appendKey adds the key of the context to metadata, if there is one. Checks have refused an invalid one before.
func appendKey(ctx context.Context, md []string) []string {
	if key := api.IdempotencyKey(ctx); key.Validate() == nil {
		md = append(md, strings.ToLower(api.IdempotencyHeader), key.Header())
	}
	return md
}
