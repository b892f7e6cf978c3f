package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
)

// Backlog is what workers have before them in one partition.
type Backlog struct {
	// NowMs is the clock by which it was measured: that of the partition's server.
	NowMs int64
	// Unread says that there is an event that no worker has read.
	Unread bool
	// Oldest is the age of the oldest event that no worker has read, by the clock
	// of the server that holds it; 0 where all are read.
	Oldest time.Duration
	// Pending events are read and not yet counted.
	Pending int64
}

// greatestID is the last that a stream can give.
const greatestID = "18446744073709551615-18446744073709551615"

// Backlogs measures every partition: partition → what is there. One whose server
// does not answer is left out, and the error says why. Redis's own `lag` is not
// true after a trim; the age of what comes after the last delivered ID is.
func Backlogs(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (map[int]Backlog, error) {
	clocks, failed := Clocks(ctx, c, k)
	pipe := c.Pipeline()
	groups := make(map[int]*redis.XInfoGroupsCmd, len(clocks))
	for p := range clocks {
		groups[p] = pipe.XInfoGroups(ctx, k.Events(p))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error; a stream that is not there is one

	next := c.Pipeline()
	list := make(map[int]Backlog, len(clocks))
	unread := make(map[int]*redis.XMessageSliceCmd, len(clocks))
	for p, now := range clocks {
		if err := groups[p].Err(); err != nil && !redisclient.IsRefusal(err) {
			failed = errors.Join(failed, err)
			continue
		}
		from := "-" // without a group nobody has read anything
		for _, g := range groups[p].Val() {
			if g.Name == Group {
				list[p] = Backlog{NowMs: now, Pending: g.Pending}
				from = "(" + g.LastDeliveredID
			}
		}
		if from == "("+greatestID { // nothing can be behind it, and Redis refuses to be asked
			continue
		}
		unread[p] = next.XRangeN(ctx, k.Events(p), from, "+", 1)
	}
	_, _ = next.Exec(ctx)
	for p, cmd := range unread {
		if err := cmd.Err(); err != nil {
			failed = errors.Join(failed, err)
			delete(list, p)
			continue
		}
		list[p] = Backlog{NowMs: clocks[p], Unread: len(cmd.Val()) > 0, Oldest: Age(cmd.Val(), clocks[p]),
			Pending: list[p].Pending}
	}
	return list, failed
}

// Age is how old the first message is by a clock in ms, 0 where there is none.
func Age(list []redis.XMessage, now int64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return max(0, time.Duration(now-entry.Ms(list[0].ID))*time.Millisecond)
}
