package consumers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// locks holds this process's share of the partitions. One process at a time relays a partition, because two could
// publish out of order. The context of a held lock ends before another process can get the lock, by this machine's
// clocks.
type locks struct {
	*shared
	mu    sync.Mutex
	holds map[int]*heldLock // partition → its lock, if this process holds it
}

// heldLock is one lock for as long as it is held without a gap. It is the context for work under the lock, and is done
// when the process no longer holds it.
type heldLock struct {
	context.Context
	partition int
	cancel    context.CancelFunc
	expire    *time.Timer
	until     atomic.Pointer[deadline] // when it ends, if it is not renewed
	// sent is the ID of the newest outbox entry that this relay or an earlier one may have sent to NATS; empty until
	// the relay has read it. Only the relay uses it.
	sent string
}

// deadline is a moment by two clocks: the monotonic clock, which nobody can set, and the wall clock, which goes on
// while the machine is suspended. The deadline has passed as soon as it has passed by one of them.
type deadline struct {
	monotonic time.Time
	wall      int64 // ms since 1970
}

func newDeadline(t time.Time) *deadline { return &deadline{t, t.UnixMilli()} }

func (d *deadline) passed() bool {
	now := time.Now()
	return !now.Before(d.monotonic) || now.UnixMilli() >= d.wall
}

// Err also checks the clocks: after a suspend, a process may go on before its timers fire.
func (h *heldLock) Err() error {
	if err := h.Context.Err(); err != nil {
		return err
	}
	if h.until.Load().passed() {
		return context.Canceled
	}
	return nil
}

// held returns the partitions held now, each with its lock.
func (l *locks) held() map[int]*heldLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[int]*heldLock, len(l.holds))
	for p, h := range l.holds {
		if h.Err() == nil {
			out[p] = h
		}
	}
	return out
}

// run takes and renews locks until ctx ends, then gives them back.
func (l *locks) run(ctx context.Context) {
	tick := time.NewTicker(l.LockTTL / 3)
	defer tick.Stop()
	for {
		l.renew(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.release()
			return
		}
	}
}

// renew renews the locks of all shards concurrently: on a Cluster, a master that does not answer must not let the
// locks on the other masters expire.
func (l *locks) renew(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, l.LockTTL)
	defer cancel()
	var asking sync.WaitGroup
	for _, parts := range l.shards {
		asking.Go(func() {
			if err := l.renewShard(within, ctx, parts); ctx.Err() == nil {
				l.outages.note("renewing the relay's locks", parts[0], err)
			}
		})
	}
	asking.Wait()
}

// renewShard requests the locks of the partitions of one server. If Redis does not answer, a lock expires by its timer.
// The contexts of the locks also end when ctx ends.
func (l *locks) renewShard(within, ctx context.Context, parts []int) error {
	requested := time.Now()
	held, err := l.request(within, parts, l.LockTTL)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range parts {
		l.record(ctx, p, held[i], requested.Add(l.LockTTL*3/4))
	}
	return nil
}

// request takes or keeps the locks of partitions of one server for ttl; with 0 it gives them back. It returns for each
// lock whether this process holds it now. It is safe to send again.
func (l *locks) request(ctx context.Context, parts []int, ttl time.Duration) ([]bool, error) {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = l.Keys.Relay(p)
	}
	r := l.lua.Call(ctx, "lock", nil, names, l.Consumer, ttl.Milliseconds())
	return r.Flags(len(parts)), r.End()
}

// record records an answer, under l.mu: the lock of a partition is held until `until`, or is not held.
func (l *locks) record(ctx context.Context, p int, ok bool, until time.Time) {
	h := l.holds[p]
	if ok && h != nil && h.Err() == nil {
		// The answer came before the hold ended, so no other process can have had the lock in between.
		h.until.Store(newDeadline(until))
		h.expire.Reset(time.Until(until))
		return
	}
	if h != nil {
		h.expire.Stop()
		h.cancel()
		delete(l.holds, p)
	}
	if ok {
		h = &heldLock{partition: p}
		h.until.Store(newDeadline(until))
		h.Context, h.cancel = context.WithCancel(ctx)
		h.expire = time.AfterFunc(time.Until(until), h.cancel)
		l.holds[p] = h
	}
}

// releaseTime is how long a stop waits for the answer about the locks. It is the last part of DrainTimeout.
func (c Config) releaseTime() time.Duration { return min(time.Second, c.DrainTimeout/5) }

func (l *locks) release() {
	ctx, cancel := context.WithTimeout(context.Background(), l.releaseTime())
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var failed error
	for _, h := range l.holds {
		h.expire.Stop()
		h.cancel()
	}
	for _, parts := range eventlog.Shards(l.Redis, slices.Collect(maps.Keys(l.holds))) {
		_, err := l.request(ctx, parts, 0)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		l.Log.Warn("releasing locks failed, they will expire", "error", failed)
	}
	clear(l.holds)
}
