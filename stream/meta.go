package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Version of the Redis contract.
const Version = 1

// ErrMismatch means that the prefix is in use with another number of partitions
// or another version of the contract.
var ErrMismatch = errors.New("prefix is in use otherwise")

// CheckMeta records the number of partitions and the contract's version at the
// first start. It returns an error if the recorded numbers are others, because the
// same key would then be counted in two places. The error wraps ErrMismatch and
// has both numbers.
func CheckMeta(ctx context.Context, c redis.Cmdable, k *Keys) error {
	fields := []struct {
		name string
		want int
	}{{"version", Version}, {"partitions", k.Partitions}}
	for _, f := range fields {
		got, err := c.HGet(ctx, k.Meta(), f.name).Result()
		if errors.Is(err, redis.Nil) {
			if err := c.HSetNX(ctx, k.Meta(), f.name, f.want).Err(); err != nil {
				return fmt.Errorf("setting %s of %s, which the first work or serve does: %w", f.name, k.Meta(), err)
			}
			got, err = c.HGet(ctx, k.Meta(), f.name).Result()
		}
		if err != nil {
			return fmt.Errorf("reading %s of %s: %w", f.name, k.Meta(), err)
		}
		if n, err := strconv.Atoi(got); err != nil || n != f.want {
			return fmt.Errorf("%w: %s says %s=%s, this process was started with %d", ErrMismatch, k.Meta(), f.name,
				got, f.want)
		}
	}
	return nil
}
