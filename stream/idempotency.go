package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Idempotency is the string that remembers the answer to a check that came with an
// idempotency key.
func (k *Keys) Idempotency(p int, key string) string { return k.tags[p] + "idempotency:" + key }

// Appended is the string that has the fingerprint of an append that came with an idempotency key.
func (k *Keys) Appended(p int, key string) string { return k.tags[p] + "appended:" + key }

// Once notes that a request with this idempotency key is under way, and what it asks for, for as
// long as the ids of events are remembered. It is false where one with another fingerprint had
// the key. It may be asked again.
func (l *Log) Once(ctx context.Context, key, fingerprint string) (same bool, err error) {
	name := l.keys.Appended(l.keys.Partition(key), key)
	first, err := l.redis.SetNX(ctx, name, fingerprint, l.retention).Result()
	if err != nil {
		return false, fmt.Errorf("noting an idempotency key: %w", err)
	}
	if first {
		return true, nil
	}
	before, err := l.redis.Get(ctx, name).Result()
	if errors.Is(err, redis.Nil) { // it has just ended
		return l.Once(ctx, key, fingerprint)
	}
	if err != nil {
		return false, fmt.Errorf("reading an idempotency key: %w", err)
	}
	return before == fingerprint, nil
}
