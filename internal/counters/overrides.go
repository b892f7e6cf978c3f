package counters

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/windows"
)

// NewOverrides returns the overrides of the counter's keys. A nil log means silence.
func (s *Redis) NewOverrides(log *slog.Logger) *overrides.All {
	return overrides.New(s.overrides(), log)
}

// Present returns a function that returns the rules with the changes of operators. rules returns them without. A nil
// log means silence.
func (s *Redis) Present(rules func() *windows.Rules, log *slog.Logger) func() *windows.Rules {
	return windows.Under(s.NewOverrides(log), rules)
}

func (s *Redis) overrides() overrides.Store {
	return overrides.Store{Redis: s.redis, Lua: s.lua, Keys: s.keys, Now: s.Clock, Readable: windows.ReadableWindows}
}

// TargetPartition returns the partition that has the override of a target: a key, or a pattern after a line feed.
func (s *Redis) TargetPartition(target string) int {
	return s.keys.Partition(strings.TrimPrefix(target, "\n"))
}

// sweepBlocks sweeps the overrides among the fields of a sweep; see overrides.Store.Sweep.
func (s *Redis) sweepBlocks(ctx context.Context, p int, rules *windows.Rules, fields []string, above int64) (
	rest []string, written int64, err error) {
	return s.overrides().Sweep(ctx, p, rules.Overrides(), fields, above)
}

// fillBlock fills the decision of a block from its override: the reason, and the end, which is 0 for a block
// without an end. It returns false if the block has ended, and no worker has removed the decision yet.
func (s *Redis) fillBlock(rules *windows.Rules, t *api.Throttled) bool {
	all := rules.Overrides()
	if !t.IsBlock() || all == nil {
		return true
	}
	if o := all.Find(t.Key); o.Blocks() {
		t.UntilMs, t.Reason = o.UntilMs(), o.Reason()
		return true
	}
	return t.UntilMs > all.Clock(s.keys.Partition(t.Key))
}

// How long Covered scans keys, and how many it counts at most.
const (
	coveredFor = 2 * time.Second
	coveredMax = 1_000_000
)

// Covered counts the keys with a count or a decision that the pattern or the network of an override matches now. It
// scans all keys, for 2 s at most. If there are more keys than it could count, AtLeast is true.
func (s *Redis) Covered(ctx context.Context, rules *windows.Rules, one api.Override) (api.Covered, error) {
	within, cancel := context.WithTimeout(ctx, coveredFor)
	defer cancel()
	out, err := s.covered(within, rules, overrides.Matcher(overrides.Target("", one.Several())))
	if errors.Is(err, errEnoughKeys) || err != nil && within.Err() != nil && ctx.Err() == nil {
		out.AtLeast, err = true, nil
	}
	return out, err
}

var errEnoughKeys = errors.New("enough keys are counted")

func (s *Redis) covered(ctx context.Context, rules *windows.Rules, fits func(key string) bool) (out api.Covered,
	err error) {
	seen := map[string]struct{}{} // a key can have several decisions, and a blocked key no count
	for t, err := range s.Throttled(ctx) {
		if err != nil {
			return out, err
		}
		if fits(t.Key) && !t.Shadow {
			seen[t.Key] = struct{}{}
			out.Throttled, out.Keys = int64(len(seen)), int64(len(seen))
		}
	}
	var mu sync.Mutex // the masters of a Cluster are scanned at the same time
	err = s.EachKey(ctx, rules, func(_ int, key string) error {
		if !fits(key) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		seen[key] = struct{}{}
		if out.Keys = int64(len(seen)); out.Keys >= coveredMax {
			return errEnoughKeys
		}
		return nil
	})
	return out, err
}
