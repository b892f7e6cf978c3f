package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/windows"
)

const (
	fillAppend = 5000 // events appended in one pipeline
	fillFold   = 500  // most events of one fold
)

// fill gives each key so many entries of one unit, spread evenly over the later
// half of the window that ends at end (ms): none leaves the window until as much
// time has passed again. It goes the way of any event, append, read, fold, by a
// clock that stands at the events' own times, and so works for every algorithm.
func (r *room) fill(ctx context.Context, end int64, entries int, progress func(done float64)) error {
	byPartition := make([][]string, r.keys.Partitions)
	for _, name := range r.names {
		p := r.keys.Partition(name)
		byPartition[p] = append(byPartition[p], name)
	}
	// A limit that nothing comes near: a full key is no denied one yet.
	rules, err := rulesOf(r.rule().Algorithm, windows.MaxLimit, r.cfg.Per)
	if err != nil {
		return err
	}
	if err := r.counter.RecordRules(ctx, r.rules); err != nil {
		return err
	}
	var mu sync.Mutex
	total, done := float64(len(r.names)*entries), 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.cfg.Connections)
	for p, names := range byPartition {
		if len(names) == 0 {
			continue
		}
		g.Go(func() error {
			f := filler{room: r, p: p, names: names, rules: rules, end: end, entries: entries}
			return f.run(ctx, func(n int) {
				mu.Lock()
				defer mu.Unlock()
				done += n
				progress(float64(done) / total)
			})
		})
	}
	return g.Wait()
}

// filler fills the keys of one partition, one entry of each key after the other.
type filler struct {
	*room
	p       int
	names   []string
	rules   *windows.Rules
	end     int64
	entries int
}

func (f *filler) at(i int) (name string, ms int64) {
	span, round := f.cfg.Per.Milliseconds()/2, int64(i/len(f.names)+1)
	return f.names[i%len(f.names)], f.end - span + span*round/int64(f.entries)
}

// batch is how many events may be folded at once. Events of a key that lie close
// together would share an entry; then a batch has each key once.
func (f *filler) batch() int {
	apart := f.cfg.Per / 2 / time.Duration(f.entries)
	if apart.Truncate(time.Millisecond) <= f.rule().Resolution() {
		return min(fillFold, len(f.names))
	}
	return fillFold
}

func (f *filler) run(ctx context.Context, did func(n int)) error {
	var now int64
	counter := windows.NewRedis(f.redis, f.keys)
	counter.Now = func() int64 { return now }
	if err := counter.RecordRules(ctx, f.rules); err != nil {
		return err
	}
	reader := eventlog.NewReader(f.redis, f.keys, "filler", []int{f.p})
	if err := reader.CreateGroups(ctx); err != nil {
		return err
	}
	events, batch := f.keys.Events(f.p), f.batch()
	for i, all := 0, len(f.names)*f.entries; i < all; {
		pipe := f.redis.Pipeline()
		for ; i < all && pipe.Len() < fillAppend; i++ {
			name, ms := f.at(i)
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: events, ID: strconv.FormatInt(ms, 10) + "-*",
				Values: []any{"key", name, "count", 1}})
		}
		n := pipe.Len()
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("appending what %s is filled with: %w", events, err)
		}
		for folded := 0; folded < n; {
			list, err := readEvents(ctx, reader, batch)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return fmt.Errorf("filling from %s: %d of %d events were there to be read", events, folded, n)
			}
			now = list[len(list)-1].Ms
			got, _, err := counter.Fold(ctx, f.p, f.rules, list)
			if err != nil {
				return err
			}
			if got.Folded != int64(len(list)) || got.Merged != 0 {
				return fmt.Errorf("filling from %s: of %d events %+v", events, len(list), got)
			}
			folded += len(list)
			did(len(list))
		}
		if err := f.redis.XTrimMaxLen(ctx, events, 0).Err(); err != nil {
			return fmt.Errorf("trimming %s: %w", events, err)
		}
	}
	if err := f.redis.Del(ctx, events).Err(); err != nil {
		return fmt.Errorf("removing %s: %w", events, err)
	}
	return nil
}

// readEvents reads a batch of the reader's one partition, as a worker does.
func readEvents(ctx context.Context, reader *eventlog.Reader, batch int) ([]windows.Event, error) {
	batches, err := reader.Read(ctx, batch, -1)
	if err != nil || len(batches) == 0 {
		return nil, err
	}
	events := make([]windows.Event, len(batches[0].Messages))
	for i, m := range batches[0].Messages {
		e, err := m.Decode()
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", m.ID, err)
		}
		events[i] = windows.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count}
	}
	return events, nil
}

func serverMs(ctx context.Context, c redis.UniversalClient) (int64, error) {
	t, err := c.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("reading the server's clock: %w", err)
	}
	return t.UnixMilli(), nil
}
