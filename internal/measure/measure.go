// Package measure owns the figures that a comparison and a benchmark read from a Redis server: the CPU that its
// commands used and the memory that it holds. On a machine that others share, CPU per operation varies less than wall
// time.
//
// compare and bench use it.
package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotTold means that the server does not report this figure, like the embedded server.
var ErrNotTold = errors.New("the server does not tell")

// CPU is what the server's main thread, where its commands and scripts run, has used since it started. On a Cluster
// it is the sum over the masters.
func CPU(ctx context.Context, c redis.UniversalClient) (time.Duration, error) {
	total, err := sum(ctx, c, "cpu", "used_cpu_user_main_thread", "used_cpu_sys_main_thread")
	return time.Duration(total * float64(time.Second)), err
}

// Memory is what the server has allocated (used_memory), in bytes. On a Cluster it is the sum over the masters.
func Memory(ctx context.Context, c redis.UniversalClient) (int64, error) {
	total, err := sum(ctx, c, "memory", "used_memory")
	return int64(total), err
}

// Used returns by how much a figure grew while do ran. It is NaN if the server does not tell the figure. The second
// reading is made even if ctx ended meanwhile.
func Used[N ~int64](ctx context.Context, c redis.UniversalClient,
	figure func(context.Context, redis.UniversalClient) (N, error), do func() error) (float64, error) {
	before, err := figure(ctx, c)
	told := !errors.Is(err, ErrNotTold)
	if err != nil && told {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	if !told {
		return math.NaN(), nil
	}
	after, err := figure(context.WithoutCancel(ctx), c)
	return float64(after - before), err
}

// Known returns x; nil if it is NaN.
func Known(x float64) *float64 {
	if math.IsNaN(x) {
		return nil
	}
	return &x
}

// sum adds up fields of a section of INFO, on a Cluster over the masters. The error is ErrNotTold if the server has
// no such field.
func sum(ctx context.Context, c redis.UniversalClient, section string, fields ...string) (float64, error) {
	var mu sync.Mutex
	var total float64
	err := eachMaster(ctx, c, func(ctx context.Context, node redis.UniversalClient) error {
		n, err := info(ctx, node, section, fields)
		mu.Lock()
		defer mu.Unlock()
		total += n
		return err
	})
	return total, err
}

func info(ctx context.Context, c redis.Cmdable, section string, fields []string) (float64, error) {
	text, err := c.Info(ctx, section).Result()
	if _, refused := errors.AsType[redis.Error](err); refused {
		err = fmt.Errorf("%w: %w", ErrNotTold, err)
	}
	if err != nil {
		return 0, fmt.Errorf("INFO %s: %w", section, err)
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		values[name] = value
	}
	var sum float64
	for _, f := range fields {
		n, err := strconv.ParseFloat(values[f], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO %s has %s:%q: %w", section, f, values[f], ErrNotTold)
		}
		sum += n
	}
	return sum, nil
}

// eachMaster calls do for each master; the masters of a Cluster are called concurrently.
func eachMaster(ctx context.Context, c redis.UniversalClient,
	do func(ctx context.Context, node redis.UniversalClient) error) error {
	if cluster, ok := c.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return do(ctx, node) })
	}
	return do(ctx, c)
}

// Remove deletes every key that begins with prefix. The prefix must have no characters that SCAN reads as a pattern.
func Remove(ctx context.Context, c redis.UniversalClient, prefix string) error {
	return eachMaster(ctx, c, func(ctx context.Context, node redis.UniversalClient) error {
		for cursor := uint64(0); ; {
			names, next, err := node.Scan(ctx, cursor, prefix+"*", 1000).Result()
			if err != nil {
				return fmt.Errorf("looking for the keys %s*: %w", prefix, err)
			}
			pipe := node.Pipeline()
			for _, name := range names { // one by one: on a Cluster they are in different slots
				pipe.Unlink(ctx, name)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return fmt.Errorf("removing the keys %s*: %w", prefix, err)
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

// Keys says how many keys a load has, and how often each is used: by a Zipf distribution of exponent S, which is above
// 1, or uniformly if S is 0.
type Keys struct {
	N int
	S float64
}

// Validate returns an error that names the wrong flag.
func (k Keys) Validate() error {
	if k.S != 0 && k.S <= 1 {
		return fmt.Errorf("--zipf-s is %g: expected more than 1, or 0 for uniform", k.S)
	}
	return nil
}

// Chooser returns a function that chooses a key, from 0 to N-1.
func (k Keys) Chooser(random *rand.Rand) func() int {
	if k.S == 0 || k.N < 2 {
		return func() int { return random.IntN(k.N) }
	}
	zipf := rand.NewZipf(random, k.S, 1, uint64(k.N-1))
	return func() int { return int(zipf.Uint64()) }
}
