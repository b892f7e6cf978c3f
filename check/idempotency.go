package check

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// eachKey is the key of request i of a call whose requests are decided each by itself.
func eachKey(ctx context.Context, i int) api.Idempotency {
	key := api.IdempotencyKey(ctx)
	if key.Key != "" {
		key.Key = fmt.Sprintf("%s %d", key.Key, i) // no key has a space
	}
	return key
}

// remember gives a call the key of its caller, if there is one. What is no charge in Redis is
// not remembered: a call of which nothing is counted, and units that are given back.
func (c *call) remember(key api.Idempotency, retention time.Duration) {
	if key.Key == "" || len(c.asks) == 0 {
		return
	}
	if key.Retention > 0 && key.Retention < retention {
		retention = key.Retention
	}
	c.asks[0].Idempotency = &windows.Idempotency{Key: key.Key, Fingerprint: c.fingerprint(), Retention: retention}
}

// fingerprint tells calls apart by what they ask for: 128 bits of a SHA-256.
func (c *call) fingerprint() string {
	var text []byte
	for _, r := range c.requests {
		text = binary.AppendVarint(binary.AppendUvarint(text, uint64(len(r.Key))), r.Cost)
		text = append(append(text, r.Key...), r.Mode.Or(api.ModeTake)[0])
		if len(r.Values) > 0 {
			text = fmt.Appendf(text, "%q", r.Values) // in the order of their names
		}
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
