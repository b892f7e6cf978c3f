package bench

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/stream"
)

// turns says which partition each call of a slice reads: as many calls per
// partition as it has full batches and a rest, the partitions in turn.
func (r *room) turns(picks []int) []int {
	waiting := make([]int, r.keys.Partitions) // partition → events
	for _, k := range picks {
		waiting[r.keys.Partition(r.names[k])]++
	}
	var turns []int
	for more := true; more; {
		more = false
		for p := range waiting {
			if waiting[p] > 0 {
				turns = append(turns, p)
				waiting[p] -= r.cfg.Batch
				more = true
			}
		}
	}
	return turns
}

// readers gives each partition the group that its events are read by.
func (r *room) readers(ctx context.Context) ([]*eventlog.Reader, error) {
	readers := make([]*eventlog.Reader, r.keys.Partitions)
	for _, p := range r.keys.All() {
		readers[p] = eventlog.NewReader(r.redis, r.keys, "bench", []int{p})
		if err := readers[p].CreateGroups(ctx); err != nil {
			return nil, err
		}
	}
	return readers, nil
}

// fold reads batches and folds them, as a worker does. The events are appended
// before each slice.
func (r *room) fold(ctx context.Context) (contestant, error) {
	log, err := stream.NewLog(r.redis, r.keys, stream.DefaultRetention)
	if err != nil {
		return contestant{}, err
	}
	if _, err := r.readers(ctx); err != nil {
		return contestant{}, err
	}
	var turns []int
	return contestant{
		prepare: func(ctx context.Context, picks []int) (int, error) {
			turns = r.turns(picks)
			calls, _ := r.pipelines(ctx, picks)
			for i := range calls {
				var events []api.Event
				for _, k := range r.chunk(picks, i) {
					events = append(events, api.Event{Key: r.names[k], Count: 1})
				}
				if out := log.Append(ctx, events); out.Err != nil {
					return 0, fmt.Errorf("appending what is folded: %w", out.Err)
				}
			}
			return len(turns), nil
		},
		call: func(ctx context.Context, _ []int, i int) (result, error) {
			p := turns[i]
			// A Reader is for one goroutine, and two calls may be for one partition.
			events, err := readEvents(ctx, eventlog.NewReader(r.redis, r.keys, "bench", []int{p}), r.cfg.Batch)
			if err != nil {
				return result{}, err
			}
			if len(events) == 0 {
				return result{}, fmt.Errorf("%s: expected events, none was there to be read", r.keys.Events(p))
			}
			got, _, err := r.counter.Fold(ctx, p, r.rules, events)
			if err != nil {
				return result{}, err
			}
			return result{
				ops:    got.Folded + got.Late + got.AlreadyCounted,
				folded: got.Folded, merged: got.Merged, late: got.Late, gone: got.AlreadyCounted,
			}, nil
		},
		tidy: func(ctx context.Context) error {
			if err := r.empty(ctx, r.keys.Events); err != nil {
				return err
			}
			return r.empty(ctx, r.keys.Outbox)
		},
	}, nil
}

// readAndAck reads the same events in batches of the same size and
// acknowledges each batch by one XACK: what reading costs who counts nothing.
func (r *room) readAndAck(ctx context.Context) (contestant, error) {
	for _, p := range r.keys.All() {
		if err := r.redis.XGroupCreateMkStream(ctx, r.yardEvents(p), eventlog.Group, "0").Err(); err != nil {
			return contestant{}, fmt.Errorf("creating the group of %s: %w", r.yardEvents(p), err)
		}
	}
	var turns []int
	return contestant{
		name: "XREADGROUP+XACK",
		prepare: func(ctx context.Context, picks []int) (int, error) {
			turns = r.turns(picks)
			calls, _ := r.pipelines(ctx, picks)
			for i := range calls {
				if _, err := r.xaddAll(ctx, r.chunk(picks, i)); err != nil {
					return 0, err
				}
			}
			return len(turns), nil
		},
		call: func(ctx context.Context, _ []int, i int) (result, error) {
			name := r.yardEvents(turns[i])
			got, err := r.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: eventlog.Group, Consumer: "bench", Streams: []string{name, ">"}, Count: int64(r.cfg.Batch),
				Block: -1,
			}).Result()
			if err != nil {
				return result{}, fmt.Errorf("XREADGROUP: %w", err)
			}
			ids := make([]string, len(got[0].Messages))
			for j, m := range got[0].Messages {
				ids[j] = m.ID
			}
			n, err := r.redis.XAck(ctx, name, eventlog.Group, ids...).Result()
			if err != nil {
				return result{}, fmt.Errorf("XACK: %w", err)
			}
			return result{ops: n}, nil
		},
		tidy: func(ctx context.Context) error { return r.empty(ctx, r.yardEvents) },
	}, nil
}
