package counters

import (
	"context"
	"fmt"

	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// Fields of a partition's levels hash with its marks (lua/features/freed.lua).
const (
	freedField  = "\nfreed"
	resetsField = "\nresets"
)

// Partition returns the partition of a key.
func (s *Redis) Partition(key string) int { return s.keys.Partition(key) }

// Partitions returns the number of partitions.
func (s *Redis) Partitions() int { return s.keys.Partitions }

// Freed returns the marks of these partitions, in their order. A mark changes whenever
// units of a key of the partition become free before their time, for example by a reset or
// a refund, in any process.
func (s *Redis) Freed(ctx context.Context, parts []int) ([]string, error) {
	return s.marks(ctx, parts, freedField)
}

// Resets returns these partitions' marks of resets, in their order. A mark increases at the reset of a key whose units
// processes may still spend.
func (s *Redis) Resets(ctx context.Context, parts []int) ([]int64, error) {
	marks, err := s.marks(ctx, parts, resetsField)
	out := make([]int64, len(marks))
	for i, m := range marks {
		out[i] = atoi(m)
	}
	return out, err
}

// marks returns a field of these partitions' levels.
func (s *Redis) marks(ctx context.Context, parts []int, field string) ([]string, error) {
	levels := make([]string, len(parts))
	for i, p := range parts {
		levels[i] = s.keys.Levels(p)
	}
	marks, err := redisclient.HGetEach(ctx, s.redis, levels, field)
	if err != nil {
		return nil, fmt.Errorf("reading the marks of freed units and resets: %w", err)
	}
	return marks, nil
}
