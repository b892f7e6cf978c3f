package bench

import "time"

// slicesPerPart is about how many slices a part is cut into: enough for a median of ratios,
// and few enough that reading the CPU between them weighs nothing.
const slicesPerPart = 20

// maxSlice bounds what a slice holds in memory, and how much is lost of one that
// is cut off.
const maxSlice = 200_000

// pace says how many operations the next slice has, and when it is enough: after
// so many operations, or so much time of the product's own.
type pace struct {
	count    int           // operations in all; 0: by time
	duration time.Duration // by time: in all
	least    int           // operations of a slice
	n        int           // of the next slice
	done     int
	spent    time.Duration
}

func byCount(count, least int) *pace {
	return &pace{count: count, least: least, n: fit(least, (count+slicesPerPart-1)/slicesPerPart)}
}

// byTime starts with slices of n operations.
func byTime(d time.Duration, least, n int) *pace {
	return &pace{duration: d, least: least, n: fit(least, n)}
}

// next is 0 when it is enough.
func (p *pace) next() int {
	switch {
	case p.count > 0:
		return min(p.n, p.count-p.done)
	case p.spent >= p.duration:
		return 0
	}
	return p.n
}

// took hears what the product's slice of n operations took, and by time fits the
// size of the next one.
func (p *pace) took(n int, d time.Duration) {
	p.done += n
	p.spent += d
	if p.count > 0 {
		return
	}
	grow := float64(p.duration) / slicesPerPart / float64(max(d, time.Microsecond))
	p.n = fit(p.least, int(float64(n)*min(max(grow, 0.5), 2)))
}

func fit(least, n int) int { return min(max(least, n), maxSlice) }

// fraction is how much is behind it.
func (p *pace) fraction() float64 {
	if p.count > 0 {
		return float64(p.done) / float64(p.count)
	}
	return min(1, float64(p.spent)/float64(p.duration))
}
