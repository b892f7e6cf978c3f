package guard

import (
	"slices"
	"sync"
)

// waiting has the channels of the callers that wait for the release of a key.
type waiting struct {
	mu   sync.Mutex
	keys map[string][]chan struct{} // key → one for each caller that waits
}

// Released returns a channel that receives when the key is released, whichever rule had throttled it, and a function
// that stops the notifications. The channel holds one release until it is read. A Guard can be
// client.Config.Releases, so that Wait of a client asks again at the release.
func (g *Guard) Released(key string) (released <-chan struct{}, stop func()) {
	w, c := &g.waiting, make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys[key] = append(w.keys[key], c)
	return c, func() { w.remove(key, c) }
}

func (w *waiting) remove(key string, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.DeleteFunc(w.keys[key], func(other chan struct{}) bool { return other == c })
	if len(list) == 0 {
		delete(w.keys, key)
		return
	}
	w.keys[key] = list
}

func (w *waiting) wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.keys[key] {
		select {
		case c <- struct{}{}:
		default: // it holds one already
		}
	}
}
