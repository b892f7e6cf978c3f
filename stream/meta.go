package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// Version of the Redis contract.
const Version = 1

// ErrMismatch means that the prefix is in use with another number of partitions
// or another version of the contract.
var ErrMismatch = errors.New("prefix is in use with other settings")

// metaField is a number that is recorded when a prefix is first used.
type metaField struct {
	name string
	want int
}

func metaFields(k *Keys) []metaField {
	return []metaField{{"version", Version}, {"partitions", k.Partitions}}
}

// compare returns an error that wraps ErrMismatch if another number is recorded, and redis.Nil if none is.
func (f metaField) compare(ctx context.Context, c redis.Cmdable, k *Keys) error {
	got, err := c.HGet(ctx, k.Meta(), f.name).Result()
	if err != nil {
		return fmt.Errorf("reading %s of %s: %w", f.name, k.Meta(), err)
	}
	if n, err := strconv.Atoi(got); err != nil || n != f.want {
		return fmt.Errorf("%w: %s says %s=%s, this process was started with %d", ErrMismatch, k.Meta(), f.name, got,
			f.want)
	}
	return nil
}

// CheckMeta records the number of partitions and the contract's version at the
// first start. It returns an error if the recorded numbers are others, because the
// same key would then be counted in two places. The error wraps ErrMismatch and
// has both numbers.
func CheckMeta(ctx context.Context, c redis.Cmdable, k *Keys) error {
	for _, f := range metaFields(k) {
		err := f.compare(ctx, c, k)
		if errors.Is(err, redis.Nil) {
			if err := c.HSetNX(ctx, k.Meta(), f.name, f.want).Err(); err != nil {
				return fmt.Errorf("setting %s of %s, which the first work or serve does: %w", f.name, k.Meta(), err)
			}
			err = f.compare(ctx, c, k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Verify compares the log's numbers with those of the prefix until they were equal once: nobody reads events in
// partitions that the workers do not have. Append calls it; call it at the start to find a mistake early. Until the
// first work or serve there is nothing to compare. A user who may not read the numbers appends without this check.
func (l *Log) Verify(ctx context.Context) error {
	if l.verified.Load() {
		return nil
	}
	for _, f := range metaFields(l.keys) {
		err := f.compare(ctx, l.redis, l.keys)
		switch {
		case errors.Is(err, redis.Nil):
			return nil
		case redisclient.Word(err) == "NOPERM":
		case err != nil:
			return err
		}
	}
	l.verified.Store(true)
	return nil
}
