package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Backlog is what workers have before them in one partition.
type Backlog struct {
	// Oldest is the age of the oldest event that no worker has read, by Redis's
	// clock; 0 where all are read.
	Oldest time.Duration
	// Pending events are read and not yet counted.
	Pending int64
}

// Backlogs measures every partition, in two round trips. Redis's own `lag` is
// not true after a trim; the age of what comes after the last delivered ID is.
func Backlogs(ctx context.Context, c redis.UniversalClient, k *Keys) ([]Backlog, error) {
	pipe := c.Pipeline()
	clock := pipe.Time(ctx)
	groups := make([]*redis.XInfoGroupsCmd, k.Partitions)
	for p := range groups {
		groups[p] = pipe.XInfoGroups(ctx, k.Events(p))
	}
	// A stream that is not there is an error of its own command.
	if _, err := pipe.Exec(ctx); err != nil && clock.Err() != nil {
		return nil, fmt.Errorf("measuring the backlog: %w", err)
	}
	now := clock.Val()

	next := c.Pipeline()
	list := make([]Backlog, k.Partitions)
	unread := make([]*redis.XMessageSliceCmd, k.Partitions)
	for p := range list {
		from := "-" // without a group nobody has read anything
		for _, g := range groups[p].Val() {
			if g.Name == Group {
				list[p].Pending = g.Pending
				from = "(" + g.LastDeliveredID
			}
		}
		unread[p] = next.XRangeN(ctx, k.Events(p), from, "+", 1)
	}
	if _, err := next.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("measuring the backlog: %w", err)
	}
	for p := range list {
		list[p].Oldest = Age(unread[p].Val(), now)
	}
	return list, nil
}

// Age is how old the first message is, 0 where there is none.
func Age(list []redis.XMessage, now time.Time) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return max(0, now.Sub(time.UnixMilli(idMs(list[0].ID))))
}
