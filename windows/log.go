package windows

import "sort"

// log is the sliding log of one key in this process: the arithmetic of
// lua/totals.lua, in Go. Entries carry the running total, so that what a
// window used is a difference of two of them. Times are in ms and only grow.
type log struct{ entries []entry }

type entry struct{ ms, total int64 }

func (l *log) last() (entry, bool) {
	if len(l.entries) == 0 {
		return entry{}, false
	}
	return l.entries[len(l.entries)-1], true
}

func (l *log) total() int64 {
	e, _ := l.last()
	return e.total
}

func (l *log) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return l.entries[i-1].total
}

// add puts count at ms, or at the newest entry's time where that is later.
func (l *log) add(ms, count int64) {
	if e, ok := l.last(); ok && e.ms >= ms {
		l.entries[len(l.entries)-1].total += count
		return
	}
	l.entries = append(l.entries, entry{ms, l.total() + count})
}

// used is the sum over now-window < ms <= now, and the time of the first entry
// that makes it up.
func (l *log) used(now, window int64) (units, first int64) {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].ms > now-window })
	if i == len(l.entries) {
		return 0, 0
	}
	return l.total() - l.before(i), l.entries[i].ms
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
