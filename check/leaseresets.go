package check

import (
	"context"
	"maps"
	"slices"
	"time"
)

// watchResets is how often the marks of resets are read while there are leases. A renewal reads them too.
const watchResets = 40 * time.Millisecond

// watch begins to read the marks of resets, as a lease has units whose mark was read at a moment.
func (l *leases) watch(one *lease, read time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.checked = read
	if !l.watching {
		l.watching = true
		l.after(watchResets, l.look)
	}
}

// look reads the marks of resets where that was not done for watchResets, and tells of the answers given.
func (l *leases) look() {
	standing, next := l.standing()
	for _, one := range standing {
		if g := one.grant.Load(); g != nil {
			one.report(g)
		}
	}
	if next <= 0 && len(standing) > 0 {
		next = watchResets
		l.readResets(standing)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watching = len(l.held) > 0 && !l.closed.Load()
	if l.watching {
		l.after(next, l.look)
	}
}

// standing gives the leases that have units, and in how long the marks are to be read: when those of one
// of them are older than watchResets.
func (l *leases) standing() (standing []*lease, next time.Duration) {
	now := l.now()
	next = watchResets
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.held {
		if g := one.grant.Load(); g != nil && g.stands(now) {
			standing = append(standing, one)
			next = min(next, one.checked.Add(watchResets).Sub(now))
		}
	}
	return standing, next
}

// readResets ends leases of partitions whose mark has grown.
func (l *leases) readResets(standing []*lease) {
	held, asked := map[int][]*lease{}, l.now() // partition → its leases
	for _, one := range standing {
		p := l.counter.Partition(one.key)
		held[p] = append(held[p], one)
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	parts := slices.Collect(maps.Keys(held))
	marks, err := l.counter.Resets(ctx, parts)
	if err != nil {
		return // the leases end soon
	}
	for i, p := range parts {
		for _, one := range held[p] {
			if g := one.grant.Load(); g != nil && g.resets < marks[i] {
				one.giveBack()
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range standing {
		one.checked = later(one.checked, asked)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
