package inprocess

import (
	"sort"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// log is the sliding log of one key: the arithmetic of lua/totals.lua, in Go.
// Entries carry the running total, so that what a window used is a difference
// of two of them. Times are in ms and only grow. The zero log is empty.
type log struct {
	entries []entry
	span    int64  // the longest window of its rule, ms
	used    uint64 // the number of its last use
}

type entry struct{ ms, total int64 }

// newest is the time of the newest entry, and false where there is none.
func (l *log) newest() (ms int64, ok bool) {
	if len(l.entries) == 0 {
		return 0, false
	}
	return l.entries[len(l.entries)-1].ms, true
}

// before is the running total ahead of entry i; of len(entries), all of it.
func (l *log) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return l.entries[i-1].total
}

func (l *log) total() int64 { return l.before(len(l.entries)) }

// add puts count at ms, or at the newest entry's time where that is later.
func (l *log) add(ms, count int64) {
	if newest, ok := l.newest(); ok && newest >= ms {
		l.entries[len(l.entries)-1].total += count
		return
	}
	l.entries = append(l.entries, entry{ms, l.total() + count})
}

// sum is the sum over now-window < ms <= now, and the time of the first entry
// that makes it up.
func (l *log) sum(now, window int64) (units, first int64) {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].ms > now-window })
	if i == len(l.entries) {
		return 0, 0
	}
	return l.total() - l.before(i), l.entries[i].ms
}

// states gives what each window holds.
func (l *log) states(now int64, windows []Window) []api.WindowState {
	out := make([]api.WindowState, len(windows))
	for i, w := range windows {
		var nextFree, empty time.Duration
		window, length, ends := w.at(now)
		units, first := l.sum(now, window)
		switch newest, _ := l.newest(); {
		case units > 0 && ends > 0:
			empty = time.Duration(ends-now) * time.Millisecond
			nextFree = empty
		case units > 0:
			nextFree = time.Duration(first-now)*time.Millisecond + w.Per
			empty = time.Duration(newest-now)*time.Millisecond + w.Per
		}
		out[i] = api.NewWindowState(w.Limit, time.Duration(length)*time.Millisecond, units, nextFree, empty)
	}
	return out
}

// waitAll is in how many ms all windows admit cost, -1 where one never does.
func (l *log) waitAll(now int64, windows []Window, cost int64) (ms int64) {
	for _, w := range windows {
		wait := l.wait(now, w, cost)
		if wait < 0 {
			return wait
		}
		ms = max(ms, wait)
	}
	return ms
}

// wait is in how many ms a window admits cost with no more
// traffic: 0 now, -1 never, as the cost is above the limit.
func (l *log) wait(now int64, w Window, cost int64) int64 {
	if cost > w.Limit {
		return -1
	}
	window, _, ends := w.at(now)
	if used, _ := l.sum(now, window); used+cost <= w.Limit {
		return 0
	}
	if ends > 0 {
		return ends - now
	}
	return l.freeAt(now, window, w.Limit-cost) - now
}

// freeAt is the earliest time at which the window holds at most n units with
// no more traffic.
func (l *log) freeAt(now, window, n int64) int64 {
	need := l.total() - n
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].total >= need })
	if need <= 0 || i == len(l.entries) {
		return now
	}
	return max(now, l.entries[i].ms+window)
}

// trim forgets what every window of span or less has left behind, and takes it
// out of the totals, which so stay as small as what is kept.
func (l *log) trim(now, span int64) {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].ms > now-span })
	switch {
	case i == len(l.entries):
		l.entries = nil
	case i > len(l.entries)/2: // copy half of them at most once
		gone := l.before(i)
		l.entries = append([]entry(nil), l.entries[i:]...)
		for j := range l.entries {
			l.entries[j].total -= gone
		}
	}
}
