package measure

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotTold means that the server does not report this figure, like the embedded server.
var ErrNotTold = errors.New("the server does not tell")

// CPU is what the server's main thread, where its commands and scripts run, has used since it started. On a Cluster
// it is the sum over the masters.
func CPU(ctx context.Context, c redis.UniversalClient) (time.Duration, error) {
	sum, err := Sum(ctx, c, "cpu", "used_cpu_user_main_thread", "used_cpu_sys_main_thread")
	return time.Duration(sum * float64(time.Second)), err
}

// Memory is what the server has allocated (used_memory), in bytes. On a Cluster
// it is the sum over the masters.
func Memory(ctx context.Context, c redis.UniversalClient) (int64, error) {
	sum, err := Sum(ctx, c, "memory", "used_memory")
	return int64(sum), err
}

// Sum adds up fields of a section of INFO, on a Cluster over the masters. The error is ErrNotTold if the server has
// no such field.
func Sum(ctx context.Context, c redis.UniversalClient, section string, fields ...string) (float64, error) {
	sums := make(chan float64, 1)
	sums <- 0
	err := eachMaster(ctx, c, func(ctx context.Context, node redis.UniversalClient) error {
		n, err := info(ctx, node, section, fields)
		sums <- <-sums + n
		return err
	})
	return <-sums, err
}

func info(ctx context.Context, c redis.Cmdable, section string, fields []string) (float64, error) {
	text, err := c.Info(ctx, section).Result()
	if err != nil {
		return 0, fmt.Errorf("INFO %s: %w: %w", section, ErrNotTold, err)
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
