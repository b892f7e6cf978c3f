package counters_test

import "math/big"

// Oracle recounts naively: it keeps every unit that was admitted or folded and
// adds them up one by one. It shares no code with the product, and no idea
// beyond the definition of what a window holds.
type Oracle struct {
	// Formula says what a window of a key holds; nil means Exact.
	Formula Formula
	events  map[string][]Happened
}

// Happened is what was counted at its own time, and at the time at which it was
// put: a counter's time only grows, so an event that is older than the newest
// is put at the newest one's time.
type Happened struct{ Ms, Put, Count int64 }

// Formula gives the units that a window of `window` ms holds at now.
type Formula func(events []Happened, now, window int64) int64

// OracleWindow is one window, in ms and units.
type OracleWindow struct{ Ms, Limit int64 }

// Exact is the sliding window itself: what happened at now-window < ms <= now.
func Exact(events []Happened, now, window int64) int64 {
	return sum(events, func(e Happened) bool { return e.Put > now-window })
}

// FixedWindow is what happened since the last multiple of the window.
func FixedWindow(events []Happened, now, window int64) int64 {
	return sum(events, func(e Happened) bool { return e.Ms/window == now/window })
}

// TwoWindows is the estimate from two fixed windows: the current one, and the
// one before by the share of it that is still covered, rounded up.
func TwoWindows(events []Happened, now, window int64) int64 {
	previous := sum(events, func(e Happened) bool { return e.Ms/window == now/window-1 })
	share := new(big.Rat).Mul(big.NewRat(window-now%window, window), big.NewRat(previous, 1))
	up, rest := new(big.Int).QuoRem(share.Num(), share.Denom(), new(big.Int))
	return FixedWindow(events, now, window) + up.Int64() + int64(rest.Sign())
}

// Buckets is the sliding window over buckets of window/n ms, rounded up, each
// counted whole until its last millisecond has left.
func Buckets(n int64) Formula {
	return func(events []Happened, now, window int64) int64 {
		width := (window + n - 1) / n
		return sum(events, func(e Happened) bool { return e.Put/width*width+width-1 > now-window })
	}
}

func sum(events []Happened, counts func(Happened) bool) (units int64) {
	for _, e := range events {
		if counts(e) {
			units += e.Count
		}
	}
	return units
}

// Add notes count units of a key at ms.
func (o *Oracle) Add(key string, ms, count int64) {
	if o.events == nil {
		o.events = map[string][]Happened{}
	}
	o.events[key] = append(o.events[key], Happened{ms, o.Clock(key, ms), count})
}

// Clock is the time of a key: never below what it has counted.
func (o *Oracle) Clock(key string, now int64) int64 {
	for _, e := range o.events[key] {
		now = max(now, e.Put)
	}
	return now
}

// GiveBack takes the oldest units of a window out, as if they had never been, and
// says how many. Their time stays (see Clock).
func (o *Oracle) GiveBack(key string, now, window, units int64) int64 {
	left := units
	for i := range o.events[key] {
		if e := &o.events[key][i]; e.Put > now-window {
			n := min(e.Count, left)
			e.Count -= n
			left -= n
		}
	}
	return units - left
}

// Reset forgets a key.
func (o *Oracle) Reset(key string) { delete(o.events, key) }

// Used is what a window of the key holds.
func (o *Oracle) Used(key string, now, window int64) int64 {
	if o.Formula == nil {
		return Exact(o.events[key], now, window)
	}
	return o.Formula(o.events[key], now, window)
}

// Truth is what the window of the key holds, whatever the formula says.
func (o *Oracle) Truth(key string, now, window int64) int64 {
	return Exact(o.events[key], now, window)
}

// Admits reports whether all windows admit cost more units.
func (o *Oracle) Admits(key string, now, cost int64, windows []OracleWindow) bool {
	for _, w := range windows {
		if o.Used(key, now, w.Ms)+cost > w.Limit {
			return false
		}
	}
	return true
}
