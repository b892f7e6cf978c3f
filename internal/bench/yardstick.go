package bench

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed empty.lua
var emptyText string

//go:embed gcra.lua
var gcraText string

var emptyScript, gcraScript = redis.NewScript(emptyText), redis.NewScript(gcraText)

// GCRA asks for one of a limit of units per `per` by the yardstick of checks.
func GCRA(ctx context.Context, c redis.Scripter, key string, limit int64, per time.Duration) error {
	return gcraScript.Run(ctx, c, []string{key}, limit, per.Microseconds(), 1).Err()
}

// yardKeys names a key of a yardstick for each key of ours: rank → name.
func (r *room) yardKeys(what string) []string {
	out := make([]string, len(r.names))
	for i, name := range r.names {
		out[i] = r.yard(r.keys.Partition(name), what+":"+name)
	}
	return out
}

// inPipelines runs one command for each of n, a thousand in a pipeline.
func (r *room) inPipelines(ctx context.Context, n int, command func(pipe redis.Pipeliner, i int)) error {
	for i := 0; i < n; {
		pipe := r.redis.Pipeline()
		for ; i < n && pipe.Len() < 1000; i++ {
			command(pipe, i)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// get reads one short string: the least that an answer from Redis costs.
func (r *room) get(ctx context.Context) (contestant, error) {
	keys := r.yardKeys("get")
	err := r.inPipelines(ctx, len(keys), func(pipe redis.Pipeliner, i int) {
		pipe.Set(ctx, keys[i], "1",
			24*time.Hour)
	})
	if err != nil {
		return contestant{}, fmt.Errorf("setting what GET reads: %w", err)
	}
	return contestant{name: "GET", call: func(ctx context.Context, picks []int, i int) (result, error) {
		if err := r.redis.Get(ctx, keys[picks[i]]).Err(); err != nil {
			return result{}, fmt.Errorf("GET: %w", err)
		}
		return result{ops: 1}, nil
	}}, nil
}

// emptyScript runs a script that does nothing, by its hash.
func (r *room) emptyScript() contestant {
	keys := r.yardKeys("empty")
	return contestant{name: "empty script", call: func(ctx context.Context, picks []int, i int) (result, error) {
		if err := emptyScript.Run(ctx, r.redis, keys[picks[i]:picks[i]+1]).Err(); err != nil {
			return result{}, fmt.Errorf("empty script: %w", err)
		}
		return result{ops: 1}, nil
	}}
}

// gcra checks the same limit by gcra.lua. Its keys begin as full as ours.
func (r *room) gcra(ctx context.Context) (contestant, error) {
	keys := r.yardKeys("gcra")
	limit, per := r.cfg.limit(), r.cfg.Per.Microseconds()
	ask := func(ctx context.Context, i int, cost int64) (admitted bool, err error) {
		v, err := gcraScript.Run(ctx, r.redis, keys[i:i+1], limit, per, cost).Int64Slice()
		if err != nil {
			return false, fmt.Errorf("GCRA: %w", err)
		}
		if len(v) != 4 {
			return false, fmt.Errorf("GCRA: reply %v, expected 4 integers", v)
		}
		return v[0] == 1, nil
	}
	if cost := min(int64(r.cfg.Entries), limit); cost > 0 {
		t := closedLoop(ctx, realClock, r.cfg.Connections, len(keys), func(ctx context.Context, i int) (result, error) {
			_, err := ask(ctx, i, cost)
			return result{}, err
		})
		if t.first != nil {
			return contestant{}, fmt.Errorf("filling its keys: %w", t.first)
		}
	}
	return contestant{name: "GCRA", call: func(ctx context.Context, picks []int, i int) (result, error) {
		ok, err := ask(ctx, picks[i], 1)
		if err != nil {
			return result{}, err
		}
		return outcome(ok), nil
	}}, nil
}

// outcome is one check.
func outcome(admitted bool) result {
	if admitted {
		return result{ops: 1, admitted: 1}
	}
	return result{ops: 1, denied: 1}
}
