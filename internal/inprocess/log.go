package inprocess

import (
	"sort"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// log is the sliding log of one key: the arithmetic of lua/meters/totals.lua, in Go.
// Entries have the running total, so the use of a window is the difference of two
// totals. Times are in ms and only increase. The zero log is empty.
type log struct {
	entries []entry
	span    int64  // the longest window of its rule, ms
	used    uint64 // the number of its last use
	clock   int64  // the time of that use, which may be before the newest entry
}

type entry struct{ ms, total int64 }

// newest returns the time of the newest entry, and false if there is none.
func (l *log) newest() (ms int64, ok bool) {
	if len(l.entries) == 0 {
		return 0, false
	}
	return l.entries[len(l.entries)-1].ms, true
}

// before returns the running total before entry i. For len(entries) it is the whole total.
func (l *log) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return l.entries[i-1].total
}

func (l *log) total() int64 { return l.before(len(l.entries)) }

// add adds count at ms, or at the newest entry's time if that is later.
func (l *log) add(ms, count int64) {
	if newest, ok := l.newest(); ok && newest >= ms {
		l.entries[len(l.entries)-1].total += count
		return
	}
	l.entries = append(l.entries, entry{ms, l.total() + count})
}

// sum returns the units with now-window < ms <= now, and the time of the first entry
// among them.
func (l *log) sum(now, window int64) (units, first int64) {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].ms > now-window })
	if i == len(l.entries) {
		return 0, 0
	}
	return l.total() - l.before(i), l.entries[i].ms
}

// states returns the state of each window.
func (l *log) states(now int64, windows []Window) []api.WindowState {
	out := make([]api.WindowState, len(windows))
	for i, w := range windows {
		var nextFree, empty time.Duration
		window, length, ends := w.at(now)
		units, first := l.sum(now, window)
		switch newest, _ := l.newest(); {
		case units > 0 && ends > 0:
			empty = time.Duration(ends-l.clock) * time.Millisecond
			nextFree = empty
		case units > 0:
			nextFree = time.Duration(first-l.clock)*time.Millisecond + w.Per
			empty = time.Duration(newest-l.clock)*time.Millisecond + w.Per
		}
		out[i] = api.NewWindowState(w.Limit, time.Duration(length)*time.Millisecond, units, nextFree, empty)
	}
	return out
}

// waitAll returns the time in ms until all windows admit cost, -1 if one never does.
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

// wait returns the time in ms until a window admits cost if no more traffic comes:
// 0 now, -1 never, because the cost is above the limit.
func (l *log) wait(now int64, w Window, cost int64) int64 {
	if cost > w.Limit {
		return -1
	}
	window, _, ends := w.at(now)
	if used, _ := l.sum(now, window); used+cost <= w.Limit {
		return 0
	}
	if ends > 0 {
		return ends - l.clock
	}
	return l.freeAt(now, window, w.Limit-cost) - l.clock
}

// freeAt returns the earliest time at which the window holds at most n units if no
// more traffic comes.
func (l *log) freeAt(now, window, n int64) int64 {
	need := l.total() - n
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].total >= need })
	if need <= 0 || i == len(l.entries) {
		return now
	}
	return max(now, l.entries[i].ms+window)
}

// trim removes entries that have left every window of span or less, and subtracts
// them from the totals, so that the totals stay small.
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
