package counters_test

import "math/big"

// Oracle recounts naively: it keeps every unit that was admitted or folded, and
// adds the units up one by one. It shares no code with the product. It uses only
// the definition of what a window holds.
type Oracle struct {
	// Formula says what a window of a key holds; nil means Exact.
	Formula Formula
	events  map[string][]Happened
}

// Happened is a counted event with its own time, and with the time at which it was
// counted: a counter's time only increases, so an event that is older than the newest
// event is counted at the newest event's time.
type Happened struct{ Ms, Put, Count int64 }

// Formula returns the units that a window of `window` ms holds at now.
type Formula func(events []Happened, now, window int64) int64

// OracleWindow is one window, in ms and units.
type OracleWindow struct{ Ms, Limit int64 }

// Exact is the sliding window itself: the units with now-window < ms <= now.
func Exact(events []Happened, now, window int64) int64 {
	return sum(events, func(e Happened) bool { return e.Put > now-window })
}

// FixedWindow has the units since the last multiple of the window.
func FixedWindow(events []Happened, now, window int64) int64 {
	return sum(events, func(e Happened) bool { return e.Ms/window == now/window })
}

// TwoWindows is the estimate from two fixed windows: the units of the current window,
// and the share of the window before it that is still covered, rounded up.
func TwoWindows(events []Happened, now, window int64) int64 {
	previous := sum(events, func(e Happened) bool { return e.Ms/window == now/window-1 })
	share := new(big.Rat).Mul(big.NewRat(window-now%window, window), big.NewRat(previous, 1))
	up, rest := new(big.Int).QuoRem(share.Num(), share.Denom(), new(big.Int))
	return FixedWindow(events, now, window) + up.Int64() + int64(rest.Sign())
}

// Buckets is the sliding window over buckets of window/n ms, rounded up. A bucket
// counts as a whole until its last millisecond has left.
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

// Add records count units of a key at ms.
func (o *Oracle) Add(key string, ms, count int64) {
	if o.events == nil {
		o.events = map[string][]Happened{}
	}
	o.events[key] = append(o.events[key], Happened{ms, o.Clock(key, ms), count})
}

// Clock returns the time of a key: never below the time of its newest event.
func (o *Oracle) Clock(key string, now int64) int64 {
	for _, e := range o.events[key] {
		now = max(now, e.Put)
	}
	return now
}

// GiveBack removes the oldest units of a window, as if they had never been counted, and
// returns how many it removed. Their time still counts for Clock.
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

// Used returns the units in a window of the key.
func (o *Oracle) Used(key string, now, window int64) int64 {
	if o.Formula == nil {
		return Exact(o.events[key], now, window)
	}
	return o.Formula(o.events[key], now, window)
}

// Truth returns the units in the window of the key by the formula Exact.
func (o *Oracle) Truth(key string, now, window int64) int64 {
	return Exact(o.events[key], now, window)
}
