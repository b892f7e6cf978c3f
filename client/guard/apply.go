package guard

import (
	"unique"

	"github.com/streamcounter/streamcounter/api"
)

// A decision that has ended is remembered until copies of the decision before it have expired. Until then a late copy
// does nothing. It is remembered at least as long as a release is kept in the stream, and at most ten minutes.
const keepLeast, keepMost = 60_000, 600_000 // ms

// apply takes one message. Only the goroutine of Run calls it.
func (g *Guard) apply(subject string, data []byte) {
	t, err := api.ReadTransition(subject, data)
	if err != nil {
		g.malformed()
		return
	}
	hash := g.table.hash(t.Key)
	s := g.held.shard(hash)
	rule := unique.Make(t.Rule)
	old := s.of(t.Key, rule)
	if old != nil {
		if t.Version < old.version {
			s.mu.Lock()
			old.snapshot = g.snapshot // a late copy too says that its subject exists
			s.mu.Unlock()
			g.counts.old.Add(1)
			return
		}
	} else if g.held.size >= g.config.MaxKeys {
		if t.State == api.StateThrottled && !t.Shadow {
			g.counts.refused.Add(1)
		}
		return
	}
	now := g.now()
	d := decision{
		rule: rule, reason: t.Reason, limit: t.Limit, windowMs: t.WindowMs, used: t.Used,
		version: t.Version, atMs: t.AtMs, sinceMs: t.SinceMs, untilMs: t.UntilMs, expiresMs: t.ExpiresMs,
		keepMs:   t.ExpiresMs,
		snapshot: g.snapshot, throttled: t.State == api.StateThrottled && !t.Shadow,
		inFlight: t.InFlight,
	}
	if !d.throttled {
		d.keepMs = now + keepLeast
		if old != nil {
			d.keepMs = min(max(d.keepMs, old.keepMs), now+keepMost)
		}
	}
	g.held.put(s, t.Key, d)
	g.counts.applied.Add(1)
	g.update(s, t, now, Decided)
}

// update copies the decisions that the shard now has of a key into the table, and calls notify if the state of the key
// has changed. In the table, a key that is not throttled has 0.
func (g *Guard) update(s *shard, t api.Transition, now int64, why Reason) {
	before, untilMs := g.table.until(t.Key), s.longest(t.Key)
	if now >= untilMs {
		untilMs = 0
	}
	g.table.set(t.Key, untilMs)
	g.note() // before OnChange can ask
	expired := before != 0 && now >= before
	if expired {
		g.notify(t, api.StateReleased, Expired)
	} else if before != 0 && untilMs == 0 {
		g.notify(t, api.StateReleased, why)
	}
	if untilMs != 0 && (before == 0 || expired) {
		g.notify(t, api.StateThrottled, why)
	}
}

// finishSnapshot removes the decisions that are not in the snapshot: they ended while the guard was not connected. If a
// malformed message may be in the place of a decision, it removes nothing: decisions end at their expires_ms anyway.
func (g *Guard) finishSnapshot() {
	g.complete = true
	if !g.malformedSeen {
		g.resyncWait = 0
		for i := range g.held.shards {
			g.prune(&g.held.shards[i], func(d *decision) bool { return d.throttled && d.snapshot != g.snapshot },
				Missing)
		}
	}
	g.counts.snapshots.Add(1)
	select {
	case <-g.ready:
	default:
		close(g.ready)
	}
}

// sweep removes what has expired, from one shard at a time.
func (g *Guard) sweep() {
	now := g.now()
	g.prune(&g.held.shards[g.sweepAt], func(d *decision) bool { return now >= d.keepMs }, Expired)
	if g.sweepAt = (g.sweepAt + 1) % shards; g.sweepAt == 0 {
		g.table.shrink()
	}
}

func (g *Guard) prune(s *shard, ended func(*decision) bool, why Reason) {
	g.held.prune(s, ended, func(key string, d decision) {
		if d.throttled {
			g.update(s, d.transition(key), g.now(), why)
		}
	})
	g.note()
}

func (g *Guard) note() {
	g.counts.throttled.Store(int64(g.table.live))
	g.counts.held.Store(int64(g.held.size))
}

// notify wakes the callers that wait for a release, and queues a change for OnChange, unless the queue is full.
func (g *Guard) notify(t api.Transition, state api.State, why Reason) {
	if t.State = state; state == api.StateReleased {
		g.waiting.wake(t.Key)
	}
	if g.changes == nil {
		return
	}
	select {
	case g.changes <- Change{t, why}:
	default:
		g.counts.dropped.Add(1)
	}
}
