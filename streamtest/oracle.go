package streamtest

// Oracle recounts naively: it keeps every unit that was admitted or folded and
// adds them up one by one. It shares no code with the product, and no idea
// beyond the definition: a window of W at `now` holds what happened at
// now-W < ms <= now.
type Oracle struct {
	events map[string][]happened
}

type happened struct{ ms, count int64 }

// OracleWindow is one window, in ms and units.
type OracleWindow struct{ Ms, Limit int64 }

// Add notes count units of a key at ms. An event that is older than the key's
// newest counts at the newest one's time, as the contract says of counters.
func (o *Oracle) Add(key string, ms, count int64) {
	if o.events == nil {
		o.events = map[string][]happened{}
	}
	for _, e := range o.events[key] {
		ms = max(ms, e.ms)
	}
	o.events[key] = append(o.events[key], happened{ms, count})
}

// Reset forgets a key.
func (o *Oracle) Reset(key string) { delete(o.events, key) }

// Used is what a window of the key holds.
func (o *Oracle) Used(key string, now, window int64) int64 {
	var sum int64
	for _, e := range o.events[key] {
		if e.ms > now-window {
			sum += e.count
		}
	}
	return sum
}

// Admits tells whether all windows admit cost more units.
func (o *Oracle) Admits(key string, now, cost int64, windows []OracleWindow) bool {
	for _, w := range windows {
		if o.Used(key, now, w.Ms)+cost > w.Limit {
			return false
		}
	}
	return true
}

// RetryAfter is the shortest wait after which cost is admitted with no more
// traffic: it tries the moments at which something leaves a window.
func (o *Oracle) RetryAfter(key string, now, cost int64, windows []OracleWindow) int64 {
	if o.Admits(key, now, cost, windows) {
		return 0
	}
	best := int64(-1)
	for _, e := range o.events[key] {
		for _, w := range windows {
			at := e.ms + w.Ms
			if at > now && (best < 0 || at-now < best) && o.Admits(key, at, cost, windows) {
				best = at - now
			}
		}
	}
	return best
}
