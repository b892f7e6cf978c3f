package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Idempotency names the string with the answer to a check that came with an idempotency
// key.
func (k *Keys) Idempotency(p int, key string) string { return k.tags[p] + "idempotency:" + key }

// Appended names the string with the fingerprint of an append that came with an idempotency key.
func (k *Keys) Appended(p int, key string) string { return k.tags[p] + "appended:" + key }

// Once records that a request with this idempotency key was started, with the request's fingerprint,
// for the retention. It returns false if a request with another fingerprint had the key before. It may be called again.
func (l *Log) Once(ctx context.Context, key, fingerprint string) (same bool, err error) {
	name := l.keys.Appended(l.keys.Partition(key), key)
	first, err := l.redis.SetNX(ctx, name, fingerprint, l.retention).Result()
	if err != nil {
		return false, fmt.Errorf("recording an idempotency key: %w", err)
	}
	if first {
		return true, nil
	}
	before, err := l.redis.Get(ctx, name).Result()
	if errors.Is(err, redis.Nil) { // the string has just expired
		return l.Once(ctx, key, fingerprint)
	}
	if err != nil {
		return false, fmt.Errorf("reading an idempotency key: %w", err)
	}
	return before == fingerprint, nil
}
