package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// room is what one part has in Redis: a prefix of its own, so that no part
// finds what an earlier one left, under one rule.
type room struct {
	cfg     *Config
	redis   redis.UniversalClient
	keys    *stream.Keys
	names   []string // rank → the key that is counted
	rules   *windows.Rules
	counter *windows.Redis
}

func newRoom(cfg *Config, c redis.UniversalClient, prefix, algorithm string) (*room, error) {
	keys, err := stream.NewKeys(prefix, cfg.Partitions)
	if err != nil {
		return nil, err
	}
	r := &room{cfg: cfg, redis: c, keys: keys, names: keyNames(cfg.Keys), counter: windows.NewRedis(c, keys)}
	r.rules, err = rulesOf(algorithm, cfg.limit(), cfg.Per)
	return r, err
}

func rulesOf(algorithm string, limit int64, per time.Duration) (*windows.Rules, error) {
	return windows.NewRules([]*windows.Rule{{
		Name: "bench", Match: "*", Algorithm: algorithm, Hold: windows.DefaultHold,
		Windows: []windows.Window{{Limit: limit, Per: per}},
	}})
}

func (r *room) rule() *windows.Rule { return r.rules.List()[0] }

// plan is that of all keys.
func (r *room) plan() *windows.Plan { return r.rules.Match(r.names[0]) }

// yard names a key of a yardstick, in the partition of a key of ours.
func (r *room) yard(p int, what string) string {
	return r.keys.Prefix + ":{" + strconv.Itoa(p) + "}:yard-" + what
}

// used is the mean of what some of the keys have used, as Peek tells it.
func (r *room) used(ctx context.Context) (float64, error) {
	step := max(1, len(r.names)/100)
	var sum, n float64
	for i := 0; i < len(r.names); i += step {
		st, err := r.counter.Peek(ctx, r.plan(), r.names[i])
		if err != nil {
			return 0, fmt.Errorf("peeking at %s: %w", r.names[i], err)
		}
		sum, n = sum+float64(st.Windows[0].Used), n+1
	}
	return sum / n, nil
}

// empty trims streams to nothing: nobody else reads what a run leaves in its
// event streams and outboxes, and it would only grow. They expire should this
// process be killed.
func (r *room) empty(ctx context.Context, name func(p int) string) error {
	pipe := r.redis.Pipeline()
	for _, p := range r.keys.All() {
		pipe.XTrimMaxLen(ctx, name(p), 0)
		pipe.PExpire(ctx, name(p), time.Hour)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("trimming %s and the like: %w", name(0), err)
	}
	return nil
}
