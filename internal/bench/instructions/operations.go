package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/bench"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// yardstick is what figures of another build of Redis are compared by.
const yardstick = "GCRA"

// keysOf is how many keys the checks take in turn; each has had 100 units.
const keysOf = 20

const farAway = 1_000_000_000 // a limit whose levels no key comes near

// operations prepares the keys of all that is counted.
func operations(ctx context.Context, c *redis.Client, wanted func(name string) bool) ([]operation, error) {
	ops := []operation{
		{"GET", 1, func(ctx context.Context, _ int) error {
			if err := c.Get(ctx, "get").Err(); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			return nil
		}},
		{yardstick, 1, func(ctx context.Context, i int) error {
			return bench.GCRA(ctx, c, "gcra:"+strconv.Itoa(i%keysOf), farAway, time.Minute)
		}},
	}
	for _, algorithm := range lua.AlgorithmNames() {
		more, err := checks(ctx, c, algorithm, wanted)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", algorithm, err)
		}
		ops = append(ops, more...)
	}
	for _, size := range []int{1, 500} {
		if !wanted(eventsName(size)) {
			continue
		}
		op, err := fold(ctx, c, size)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// counterUnder is a counter of its own with one rule.
func counterUnder(ctx context.Context, c *redis.Client, prefix string, rule windows.Rule) (*windows.Redis,
	*windows.Rules, error) {
	keys, err := stream.NewKeys(prefix, 1)
	if err != nil {
		return nil, nil, err
	}
	rule.Name, rule.Match, rule.Hold = "api", "*", windows.DefaultHold
	rules, err := windows.NewRules([]*windows.Rule{&rule})
	if err != nil {
		return nil, nil, err
	}
	counter := windows.NewRedis(c, keys)
	return counter, rules, counter.RecordRules(ctx, rules)
}

func checks(ctx context.Context, c *redis.Client, algorithm string, wanted func(name string) bool) ([]operation,
	error) {
	// No entry leaves it while all operations are counted.
	day := []windows.Window{{Limit: farAway, Per: 24 * time.Hour}}
	var ops []operation
	for _, x := range []struct {
		name    string
		windows []windows.Window
		of      int
		oneCall bool
		allowed bool
	}{
		{"check", day, 1, false, true},
		{"check, two windows", append(day, windows.Window{Limit: farAway, Per: 48 * time.Hour}), 1, false, true},
		{"check, 20 in a run", day, 20, false, true},
		{"check, 20 keys in a call", day, 20, true, true},
		{"check denied", []windows.Window{{Limit: 100, Per: 24 * time.Hour}}, 1, false, false},
	} {
		if !wanted(algorithm + ": " + x.name) {
			continue
		}
		counter, rules, err := counterUnder(ctx, c, "n"+strconv.Itoa(len(ops))+"-"+algorithm,
			windows.Rule{Algorithm: algorithm, Windows: x.windows})
		if err != nil {
			return nil, err
		}
		calls := make([][]windows.Request, keysOf)
		for i := range calls {
			key := "user:" + strconv.Itoa(i)
			calls[i] = []windows.Request{{Plan: rules.Match(key), Key: key, Cost: 1}}
		}
		for range 100 {
			if _, err := counter.CheckMany(ctx, calls); err != nil {
				return nil, err
			}
		}
		ops = append(ops, operation{algorithm + ": " + x.name, x.of, func(ctx context.Context, i int) error {
			from := i * x.of % keysOf
			run := calls[from : from+x.of]
			if x.oneCall {
				run = [][]windows.Request{slices.Concat(run...)}
			}
			got, err := counter.CheckMany(ctx, run)
			if err == nil && got[0].Allowed != x.allowed {
				err = fmt.Errorf("allowed is %t", got[0].Allowed)
			}
			return err
		}})
	}
	return ops, nil
}

func eventsName(size int) string { return fmt.Sprintf("event, %d a fold", size) }

// fold appends events, reads and folds them.
func fold(ctx context.Context, c *redis.Client, size int) (operation, error) {
	counter, rules, err := counterUnder(ctx, c, "fold"+strconv.Itoa(size),
		windows.Rule{Windows: []windows.Window{{Limit: farAway, Per: 24 * time.Hour}}})
	if err != nil {
		return operation{}, err
	}
	keys, err := stream.NewKeys("fold"+strconv.Itoa(size), 1)
	if err != nil {
		return operation{}, err
	}
	if err := c.XGroupCreateMkStream(ctx, keys.Events(0), eventlog.Group, "0").Err(); err != nil {
		return operation{}, err
	}
	read := &redis.XReadGroupArgs{Group: eventlog.Group, Consumer: "x", Streams: []string{keys.Events(0), ">"},
		Count: int64(size), Block: -1}
	return operation{eventsName(size), size, func(ctx context.Context, i int) error {
		pipe := c.Pipeline()
		for j := range size {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: keys.Events(0), Values: []any{"key", key(i*size + j), "count", "1"}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		got, err := c.XReadGroup(ctx, read).Result()
		if err != nil {
			return err
		}
		events := make([]windows.Event, 0, size)
		for _, m := range got[0].Messages {
			ms, err := strconv.ParseInt(m.ID[:13], 10, 64)
			if err != nil {
				return err
			}
			events = append(events, windows.Event{ID: m.ID, Ms: ms, Key: m.Values["key"].(string), Count: 1})
		}
		folded, _, err := counter.Fold(ctx, 0, rules, events)
		if err == nil && folded.Folded != int64(size) {
			err = fmt.Errorf("%d events folded of %d", folded.Folded, size)
		}
		return err
	}}, nil
}

func key(i int) string { return "user:" + strconv.Itoa(i*7919%1000) }
