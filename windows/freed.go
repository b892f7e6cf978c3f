package windows

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// freedField of a partition's levels hash has its mark (lua/freed.lua).
const freedField = "\nfreed"

// Partition is that of a key.
func (s *Redis) Partition(key string) int { return s.keys.Partition(key) }

// Partitions is how many there are.
func (s *Redis) Partitions() int { return s.keys.Partitions }

// Freed gives the marks of these partitions, in their order. A mark changes whenever
// units of a key of the partition come back before their time: by a reset or a refund,
// whichever process asked for it.
func (s *Redis) Freed(ctx context.Context, parts []int) ([]string, error) {
	pipe := s.redis.Pipeline()
	marks := make([]*redis.StringCmd, len(parts))
	for i, p := range parts {
		marks[i] = pipe.HGet(ctx, s.keys.Levels(p), freedField)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("reading what was freed: %w", err)
	}
	out := make([]string, len(parts))
	for i, m := range marks {
		if err := m.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("reading what was freed: %w", err)
		}
		out[i] = m.Val()
	}
	return out, nil
}
