package testkit

import (
	"slices"
	"sync"
)

// Timers are the timers of something whose clock a test moves. Safe for use by several goroutines.
type Timers struct {
	mu  sync.Mutex
	set []*Timer
}

// Timer calls a function once its time has come.
type Timer struct {
	in *Timers
	at int64
	do func()
}

// Set makes a timer that is due at a time of the test's clock.
func (t *Timers) Set(at int64, do func()) *Timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := &Timer{in: t, at: at, do: do}
	t.set = append(t.set, one)
	return one
}

// Due removes a timer that is due, and returns its function; nil if none is.
func (t *Timers) Due(now int64) (do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.set, func(one *Timer) bool { return one.at <= now })
	if i < 0 {
		return nil
	}
	do = t.set[i].do
	t.set = slices.Delete(t.set, i, i+1)
	return do
}

// Stop removes the timer.
func (t *Timer) Stop() bool {
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	t.in.set = slices.DeleteFunc(t.in.set, func(one *Timer) bool { return one == t })
	return true
}
