package crowdsec

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2" // bounded; check has it already
	"golang.org/x/sync/singleflight"         // of the Go team: one scan for all who wait for it

	"github.com/streamcounter/streamcounter/api"
)

// Bounds of what is remembered, and how often Redis is read.
const (
	scanEvery    = time.Second
	scanFor      = 5 * time.Second // at most
	maxBouncers  = 10_000
	maxDeletions = 100_000
)

// Config of a Feed.
type Config struct {
	// Throttled returns the keys that are throttled or blocked now; a key may come twice.
	Throttled func(ctx context.Context) iter.Seq2[api.Throttled, error]
	// Rules are the names of the rules whose throttles are decisions. Blocks by operators always are decisions.
	Rules []string
	Now   func() int64 // ms, by the clock of the store
}

// Changes are what a bouncer has not received yet. An empty list is null.
type Changes struct {
	New     []Decision `json:"new"`
	Deleted []Decision `json:"deleted"`
}

// Feed answers bouncers from one view of the throttled keys, which is at most a second old. Each change of the view
// has a number. Of each bouncer, only the number at its last pull is kept. Its methods may be called from any
// goroutine.
type Feed struct {
	config Config
	rules  map[string]bool
	scans  singleflight.Group

	mu        sync.Mutex
	scanned   bool
	scannedMs int64
	standing  map[netip.Prefix]*standing
	deleted   []deletion // the oldest first
	mostKept  int        // how many deletions are kept at most
	forgotten uint64     // deletions up to this change are not known any more
	change    uint64     // number of the newest change
	bouncers  *lru.Cache[string, uint64]
}

type deletion struct {
	*standing
	change uint64
	atMs   int64
}

// NewFeed makes a Feed.
func NewFeed(c Config) *Feed {
	bouncers, _ := lru.New[string, uint64](maxBouncers) // the error is for a size below 1
	f := &Feed{config: c, rules: map[string]bool{}, standing: map[netip.Prefix]*standing{}, mostKept: maxDeletions,
		bouncers: bouncers}
	for _, name := range c.Rules {
		f.rules[name] = true
	}
	return f
}

// Active returns the decisions that are in effect now; nil if there is none.
func (f *Feed) Active(ctx context.Context, filter Filter) ([]Decision, error) {
	if err := f.refresh(ctx); err != nil {
		return nil, err
	}
	now := f.config.Now()
	f.mu.Lock()
	list := f.since(0, now, filter)
	f.mu.Unlock()
	return decisions(list, now), nil
}

// Pull returns what changed since the last pull of a bouncer. At the startup of a bouncer, and if its last pull is
// not known or too long ago, it returns all decisions and all deletions that are known. The changes count as received
// once told is called, so an answer that could not be written is sent again.
func (f *Feed) Pull(ctx context.Context, bouncer string, startup bool, filter Filter) (c Changes, told func(),
	err error) {
	if err := f.refresh(ctx); err != nil {
		return Changes{}, nil, err
	}
	now := f.config.Now()
	list, deleted, at := f.news(bouncer, startup, now, filter)
	for _, d := range deleted {
		c.Deleted = append(c.Deleted, d.decision(min(0, d.atMs-now)))
	}
	slices.SortFunc(c.Deleted, func(a, b Decision) int { return strings.Compare(a.Value, b.Value) })
	c.New = decisions(list, now)
	return c, func() { f.bouncers.Add(bouncer, at) }, nil
}

// news returns what a bouncer has not received, in no order, and the number of the newest change in it.
func (f *Feed) news(bouncer string, startup bool, nowMs int64, filter Filter) (list []*standing, deleted []deletion,
	at uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, known := f.bouncers.Get(bouncer)
	if startup || !known || last < f.forgotten {
		last = 0
	}
	seen := map[netip.Prefix]bool{}
	for _, d := range slices.Backward(f.deleted) {
		if d.change <= last {
			break
		}
		again := f.standing[d.at] // bouncers delete by address, some of them after they have added
		if seen[d.at] || !filter.takes(d.standing) || again != nil && filter.takes(again) {
			continue
		}
		seen[d.at] = true
		deleted = append(deleted, d)
	}
	return f.since(last, nowMs, filter), deleted, f.change
}

// since returns the decisions in effect that changed after a number, in no order.
func (f *Feed) since(last uint64, nowMs int64, filter Filter) (list []*standing) {
	for _, s := range f.standing {
		if s.change > last && s.endMs(nowMs) > nowMs && filter.takes(s) {
			list = append(list, s)
		}
	}
	return list
}

// decisions converts the decisions in effect, in the order of the addresses. It needs no lock, because a standing
// does not change once it can be found.
func decisions(list []*standing, nowMs int64) (out []Decision) {
	slices.SortFunc(list, func(a, b *standing) int { return a.at.Compare(b.at) })
	for _, s := range list {
		out = append(out, s.decision(s.endMs(nowMs)-nowMs))
	}
	return out
}

// refresh reads the throttled keys, unless that was done within the last second.
func (f *Feed) refresh(ctx context.Context) error {
	if f.isFresh() {
		return nil
	}
	done := f.scans.DoChan("", func() (any, error) {
		if f.isFresh() {
			return nil, nil
		}
		// The scan is for all callers that wait: it does not end when one of them goes.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scanFor)
		defer cancel()
		return nil, f.scan(ctx)
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Feed) isFresh() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := f.config.Now() - f.scannedMs
	return f.scanned && age >= 0 && age < scanEvery.Milliseconds()
}

func (f *Feed) scan(ctx context.Context) error {
	now, found := f.config.Now(), map[netip.Prefix]*standing{}
	for t, err := range f.config.Throttled(ctx) {
		if err != nil {
			return err
		}
		s, ok := f.standingOf(t, now)
		if !ok {
			continue
		}
		if other := found[s.at]; other == nil || s.outlasts(other) {
			found[s.at] = s
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.take(found, now)
	f.scanned, f.scannedMs = true, now
	return nil
}

// take replaces the view with what was found, and numbers what changed.
func (f *Feed) take(found map[netip.Prefix]*standing, nowMs int64) {
	next := f.change + 1
	for at, s := range found {
		old := f.standing[at]
		if old != nil && !old.mustAnnounce(s, nowMs) {
			s.announcedMs, s.change = old.announcedMs, old.change
			continue
		}
		s.announcedMs, s.change, f.change = s.endMs(nowMs), next, next
		if old != nil && old.rule != s.rule { // a bouncer that takes only the old rule must get its end
			f.deleted = append(f.deleted, deletion{old, next, nowMs})
		}
	}
	for at, old := range f.standing {
		if found[at] == nil {
			f.change = next
			f.deleted = append(f.deleted, deletion{old, next, nowMs})
		}
	}
	f.standing = found
	f.trim(nowMs)
}

// mustAnnounce reports whether bouncers must receive the new state of a decision: it has another rule, it ends at
// another time than was announced, or it lasts beyond that time and less than half of the longest duration is left.
func (s *standing) mustAnnounce(now *standing, nowMs int64) bool {
	end := now.endMs(nowMs)
	if end != now.untilMs {
		return s.rule != now.rule || s.announcedMs-nowMs < longest.Milliseconds()/2
	}
	moved := end - s.announcedMs
	return s.rule != now.rule || max(moved, -moved) >= 1000
}

// trim forgets deletions that no bouncer needs any more, because the decisions have ended there by now. If there are
// too many deletions, it forgets the oldest.
func (f *Feed) trim(nowMs int64) {
	n := max(0, len(f.deleted)-f.mostKept)
	for n < len(f.deleted) && nowMs-f.deleted[n].atMs >= longest.Milliseconds() {
		n++
	}
	if n > 0 {
		f.forgotten = f.deleted[n-1].change
		f.deleted = slices.Clone(f.deleted[n:])
	}
}
