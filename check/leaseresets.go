package check

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/lease"
)

// watchResets is how often the marks of resets are read while there are leases. A renewal reads them too.
const watchResets = 40 * time.Millisecond

// watch starts reading the marks of resets, because a lease has units. The mark of its partition was read at `read`.
func (l *leases) watch(p *leasePlan, read time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.answers.resetsReadAt = read
	if !l.watching {
		l.watching = true
		l.After(watchResets, l.checkResets)
	}
}

// checkResets reads the marks of resets if they have not been read for watchResets, and reports the answers given from
// leases.
func (l *leases) checkResets() {
	list, next := l.withUnits()
	for _, one := range list {
		if p := planOf(one.Grant()); p != nil {
			l.report(p)
		}
	}
	if next <= 0 && len(list) > 0 {
		next = watchResets
		l.readResets(list)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watching = l.Len() > 0 && !l.Closed()
	if l.watching {
		l.After(next, l.checkResets)
	}
}

// withUnits returns the leases that have units, and the time until the marks must be read again: until the mark of one
// of the leases is older than watchResets.
func (l *leases) withUnits() (list []*lease.Lease, next time.Duration) {
	now := l.Now()
	next = watchResets
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.All() {
		if g := one.Grant(); g != nil && g.IsValid(now) {
			list = append(list, one)
			next = min(next, planOf(g).answers.resetsReadAt.Add(watchResets).Sub(now))
		}
	}
	return list, next
}

// readResets ends leases of partitions whose mark has grown.
func (l *leases) readResets(list []*lease.Lease) {
	held, asked := map[int][]*lease.Lease{}, l.Now() // partition → its leases
	for _, one := range list {
		p := l.service.config.Counter.Partition(one.Key())
		held[p] = append(held[p], one)
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.service.config.Timeout)
	defer cancel()
	parts := slices.Collect(maps.Keys(held))
	marks, err := l.service.config.Counter.Resets(ctx, parts)
	if err != nil {
		return // the leases end soon
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, partition := range parts {
		for _, one := range held[partition] {
			p := planOf(one.Grant())
			if p == nil {
				continue
			}
			if p.resets < marks[i] {
				one.GiveBack()
			}
			if p.answers.resetsReadAt.Before(asked) {
				p.answers.resetsReadAt = asked
			}
		}
	}
}
