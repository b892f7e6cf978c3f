// Package overrides has what operators set for keys, patterns and networks: in Redis, where an audit stream has each
// change, and in the memory of each process. Package windows says what an override does to a plan.
package overrides

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// How overrides are followed.
const (
	pollEvery  = 500 * time.Millisecond // a change must reach every process within a second
	clockEvery = 5 * time.Second        // how often Redis's clock is compared with this process's
	// auditEntries is about how many changes the audit stream of a partition keeps. A process that has
	// missed more changes reads all overrides of the partition again.
	auditEntries = 10_000
	versionField = "\nversion" // of the hash of overrides (lua/features/overrides.lua)
	scanStep     = 1000
)

// All has all overrides of a prefix in memory, and follows their changes: Poll, then Run.
type All struct {
	store Store
	log   *slog.Logger
	set   *set

	began   time.Time      // this process's clock is monotonic from here on
	beganMs int64          // the same, in ms since 1970
	ahead   []atomic.Int64 // partition → how far its server's clock is ahead of this process's, in ms

	mu       sync.Mutex // held while changes are read
	versions []string   // partition → the version that was read last; "" before that
	clockAt  time.Time  // when the clocks were last compared

	hooks []func(targets []string)
}

// Store is where overrides are.
type Store struct {
	Redis redis.UniversalClient
	Lua   *lua.Caller
	Keys  *stream.Keys
	// Now returns the clock of tests; 0 means Redis's clock.
	Now func() lua.Now
	// Readable reports whether the windows of an override are valid. An override with invalid windows is ignored.
	Readable func([]api.OverrideWindow) bool
}

// call runs an operation on the overrides of a partition.
func (s Store) call(ctx context.Context, op string, p int, args ...any) *lua.Reply {
	keys := []string{s.Keys.Levels(p), s.Keys.Due(p), s.Keys.Outbox(p), s.Keys.Overrides(p), s.Keys.Audit(p)}
	return s.Lua.Call(ctx, op, nil, keys, append([]any{s.Now().Arg()}, args...)...)
}

// New returns the overrides of a store. A nil log means silence.
func New(s Store, log *slog.Logger) *All {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	return &All{store: s, log: log, set: newSet(), began: now, beganMs: now.UnixMilli(),
		ahead: make([]atomic.Int64, s.Keys.Partitions), versions: make([]string, s.Keys.Partitions)}
}

// OnChange adds a function to call after changes, with their targets: keys, and patterns or networks
// after a line feed. Call it before Run. The function must not set an override. It may be called by several
// goroutines at the same time: by Run, and by callers of Set and Clear.
func (o *All) OnChange(hook func(targets []string)) { o.hooks = append(o.hooks, hook) }

// Any reports whether there is an override.
func (o *All) Any() bool { return o != nil && o.set.any() }

// Changes returns a number that increases with each change of an override.
func (o *All) Changes() uint64 {
	if o == nil {
		return 0
	}
	return o.set.changes.Load()
}

// BlockedByPattern reports whether the pattern or the network of a block applies to a key now.
func (o *All) BlockedByPattern(key string) bool {
	if o == nil || len(o.set.several()) == 0 && o.set.networks.Load().count == 0 {
		return false
	}
	one := o.Find(key)
	return one.Blocks() && one.OfPattern()
}

// Len returns how many overrides there are, including ended ones that were not removed yet.
func (o *All) Len() int { return int(o.set.count.Load()) }

// Find returns the override that is in effect for a key now: that of the key, otherwise that of the smallest network
// with its address, otherwise that of the most specific pattern that fits it (with the longest text before its first *
// or ?). It returns nil if there is none. A nil All has none.
func (o *All) Find(key string) *Override {
	if o == nil {
		return nil
	}
	return o.set.find(key)
}

// Clock returns the time of a partition's server, in ms since 1970, as far as this process knows it.
// The process compares clocks every few seconds.
func (o *All) Clock(p int) int64 {
	if now := o.store.Now(); now != 0 {
		return int64(now)
	}
	return o.beganMs + time.Since(o.began).Milliseconds() + o.ahead[p].Load()
}

// Run follows the changes until ctx ends.
func (o *All) Run(ctx context.Context) {
	report := o.outage()
	for pause.For(ctx, pollEvery) {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := o.Poll(within)
		cancel()
		if ctx.Err() == nil {
			report(err)
		}
	}
}

// outage returns a function that receives the result of each read. It logs only the first of several failures, and the
// first success after a failure.
func (o *All) outage() func(error) {
	failed := false
	return func(err error) {
		switch {
		case err != nil && !failed:
			o.log.Warn("overrides cannot be read, those known stay in effect", "error", err)
		case err == nil && failed:
			o.log.Info("overrides are read again")
		}
		failed = err != nil
	}
}

// Poll reads what has changed since the last Poll; the first one reads all overrides. If a partition cannot be read, it
// returns an error, and Run tries again.
func (o *All) Poll(ctx context.Context) error {
	o.mu.Lock()
	changed, err := o.poll(ctx)
	o.mu.Unlock()
	o.callHooks(changed)
	return err
}

func (o *All) callHooks(targets []string) {
	if len(targets) > 0 {
		for _, hook := range o.hooks {
			hook(targets)
		}
	}
}

func (o *All) poll(ctx context.Context) (changed []string, err error) {
	failed := o.compareClocks(ctx)
	pipe := o.store.Redis.Pipeline()
	versions := make([]*redis.StringCmd, o.store.Keys.Partitions)
	for p := range versions {
		versions[p] = pipe.HGet(ctx, o.store.Keys.Overrides(p), versionField)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for p, v := range versions {
		version, err := v.Result()
		if errors.Is(err, redis.Nil) {
			version, err = "0-0", nil
		}
		if err == nil && version != o.versions[p] {
			var targets []string
			targets, err = o.catchUp(ctx, p)
			changed = append(changed, targets...)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("partition %d: %w", p, err))
		}
	}
	return changed, failed
}

// compareClocks measures how far the servers' clocks are ahead, once every clockEvery.
func (o *All) compareClocks(ctx context.Context) error {
	if o.store.Now() != 0 || time.Since(o.clockAt) < clockEvery {
		return nil
	}
	sent := time.Now()
	clocks, err := eventlog.Clocks(ctx, o.store.Redis, o.store.Keys)
	answered := time.Now()
	between := sent.Add(answered.Sub(sent) / 2)
	for p, ms := range clocks {
		o.ahead[p].Store(ms - (o.beganMs + between.Sub(o.began).Milliseconds()))
	}
	if err == nil {
		o.clockAt = answered
	}
	return err
}

// catchUp updates a partition to its present state. It applies the changes since the known version.
// If some of them no longer exist (trimmed, or lost in a failover), it reads the whole partition.
func (o *All) catchUp(ctx context.Context, p int) ([]string, error) {
	known := o.versions[p]
	if known != "" {
		entries, err := o.store.Redis.XRevRangeN(ctx, o.store.Keys.Audit(p), "+", "-", scanStep).Result()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.store.Keys.Audit(p), err)
		}
		for i, e := range entries { // the newest first
			if i > 0 && text(entries[i-1], "from") != text(e, "version") {
				break // one is missing
			}
			if text(e, "from") == known {
				return o.take(p, entries[:i+1]), nil
			}
		}
	}
	return o.reload(ctx, p)
}

func text(e redis.XMessage, field string) string {
	s, _ := e.Values[field].(string)
	return s
}

// take applies changes, the newest first.
func (o *All) take(p int, entries []redis.XMessage) []string {
	changes := map[string]*Override{}
	for i := len(entries) - 1; i >= 0; i-- {
		target := text(entries[i], "target")
		changes[target] = o.read(p, target, text(entries[i], "after"))
	}
	o.versions[p] = text(entries[0], "version")
	o.set.put(changes)
	return slices.Collect(maps.Keys(changes))
}

func (o *All) read(p int, target, value string) *Override {
	if value == "" {
		return nil
	}
	one := parse(o, p, target, value)
	if one == nil {
		o.log.Warn("an override in Redis is corrupt or foreign and is ignored", "partition", p, "target",
			api.Shorten(strings.TrimPrefix(target, "\n")))
	}
	return one
}

// reload reads a whole partition. A change during the read has a later version, and the next Poll reads it.
func (o *All) reload(ctx context.Context, p int) ([]string, error) {
	name := o.store.Keys.Overrides(p)
	version, err := o.store.Redis.HGet(ctx, name, versionField).Result()
	if errors.Is(err, redis.Nil) {
		version, err = "0-0", nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	changes := map[string]*Override{}
	it := o.store.Redis.HScan(ctx, name, 0, "", scanStep).Iterator()
	for it.Next(ctx) {
		target := it.Val()
		if !it.Next(ctx) {
			break
		}
		if target != versionField && target != "" {
			changes[target] = o.read(p, target, it.Val())
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	o.set.each(func(old *Override) {
		if _, changed := changes[old.target]; int(old.partition) == p && !changed {
			changes[old.target] = nil
		}
	})
	var targets []string
	for target, one := range changes {
		if old := o.set.get(target); old == nil || one == nil || *old != *one {
			targets = append(targets, target)
		}
	}
	o.set.put(changes)
	o.versions[p] = version
	return targets, nil
}
