package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/stream"
)

// Backlog has the events of one partition that workers have not counted yet.
type Backlog struct {
	// NowMs is when it was measured, by the clock of the partition's server.
	NowMs int64
	// Unread reports whether there is an event that no worker has read.
	Unread bool
	// Oldest is the age of the oldest event that no worker has read, by the clock
	// of the partition's server; 0 if all events are read, or if that event is too large.
	Oldest time.Duration
	// Pending is the number of events that are read and not yet counted.
	Pending int64
}

// greatestID is the greatest ID that a stream can have.
const greatestID = "18446744073709551615-18446744073709551615"

// Backlogs returns the backlog of every partition. If a server does not answer, it
// leaves out the server's partitions and returns an error too. It uses the age of the
// event after the last delivered ID, because Redis's `lag` is wrong after a trim.
func Backlogs(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (map[int]Backlog, error) {
	clocks, failed := Clocks(ctx, c, k)
	pipe := c.Pipeline()
	groups := make(map[int]*redis.XInfoGroupsCmd, len(clocks))
	for p := range clocks {
		groups[p] = pipe.XInfoGroups(ctx, k.Events(p))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error; a missing stream is an error

	next := c.Pipeline()
	list := make(map[int]Backlog, len(clocks))
	unread := make(map[int]*redis.XMessageSliceCmd, len(clocks))
	for p, now := range clocks {
		if err := groups[p].Err(); err != nil && !redisclient.IsRefusal(err) {
			failed = errors.Join(failed, err)
			continue
		}
		from := "-" // without a group no event was read
		for _, g := range groups[p].Val() {
			if g.Name == Group {
				list[p] = Backlog{NowMs: now, Pending: g.Pending}
				from = "(" + g.LastDeliveredID
			}
		}
		if from == "("+greatestID { // no event can follow it, and Redis refuses this range
			continue
		}
		unread[p] = next.XRangeN(ctx, k.Events(p), from, "+", 1)
	}
	Exec(ctx, c, next)
	for p, cmd := range unread {
		tooLarge := errors.Is(cmd.Err(), replyguard.ErrTooLarge)
		if err := cmd.Err(); err != nil && !tooLarge {
			failed = errors.Join(failed, err)
			delete(list, p)
			continue
		}
		list[p] = Backlog{NowMs: clocks[p], Unread: tooLarge || len(cmd.Val()) > 0,
			Oldest: Age(cmd.Val(), clocks[p]), Pending: list[p].Pending}
	}
	return list, failed
}

// Age returns how old the first message is at the time now, in ms; 0 if there is none.
func Age(list []redis.XMessage, now int64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return max(0, time.Duration(now-entry.Ms(list[0].ID))*time.Millisecond)
}
