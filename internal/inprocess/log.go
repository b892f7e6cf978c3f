package inprocess

import "sort"

// Log is the sliding log of one key: the arithmetic of lua/totals.lua, in Go.
// Entries carry the running total, so that what a window used is a difference
// of two of them. Times are in ms and only grow. The zero Log is empty.
type Log struct{ entries []entry }

type entry struct{ ms, total int64 }

// Newest is the time of the newest entry, and false where there is none.
func (l *Log) Newest() (ms int64, ok bool) {
	if len(l.entries) == 0 {
		return 0, false
	}
	return l.entries[len(l.entries)-1].ms, true
}

// Len is how many entries it holds.
func (l *Log) Len() int { return len(l.entries) }

// before is the running total ahead of entry i; of len(entries), all of it.
func (l *Log) before(i int) int64 {
	if i == 0 {
		return 0
	}
	return l.entries[i-1].total
}

func (l *Log) total() int64 { return l.before(len(l.entries)) }

// Add puts count at ms, or at the newest entry's time where that is later.
func (l *Log) Add(ms, count int64) {
	if newest, ok := l.Newest(); ok && newest >= ms {
		l.entries[len(l.entries)-1].total += count
		return
	}
	l.entries = append(l.entries, entry{ms, l.total() + count})
}

// Used is the sum over now-window < ms <= now, and the time of the first entry
// that makes it up.
func (l *Log) Used(now, window int64) (units, first int64) {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].ms > now-window })
	if i == len(l.entries) {
		return 0, 0
	}
	return l.total() - l.before(i), l.entries[i].ms
}

// Use is Used, and in how many ms the first and the last of these units leave
// the window; 0 where none are used.
func (l *Log) Use(now, window int64) (units, more, reset int64) {
	units, first := l.Used(now, window)
	if units == 0 {
		return 0, 0, 0
	}
	newest, _ := l.Newest()
	return units, first + window - now, newest + window - now
}

// Wait is in how many ms a window of this limit admits cost with no more
// traffic: 0 now, -1 never, as the cost is above the limit.
func (l *Log) Wait(now, window, limit, cost int64) int64 {
	if cost > limit {
		return -1
	}
	if used, _ := l.Used(now, window); used+cost <= limit {
		return 0
	}
	return l.freeAt(now, window, limit-cost) - now
}

// freeAt is the earliest time at which the window holds at most n units with
// no more traffic.
func (l *Log) freeAt(now, window, n int64) int64 {
	need := l.total() - n
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].total >= need })
	if need <= 0 || i == len(l.entries) {
		return now
	}
	return max(now, l.entries[i].ms+window)
}

// Trim forgets what every window of span or less has left behind, and takes it
// out of the totals, which so stay as small as what is kept.
func (l *Log) Trim(now, span int64) {
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
