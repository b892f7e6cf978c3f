package access

import (
	"log/slog"
	"sync"
)

// maxRefusals bounds the kinds that are remembered.
const maxRefusals = 1000

// Refusals logs the first refusal of each kind. If a proxy has a wrong token, every request is refused. Without a
// line in the log nobody knows why, and a line for each request would fill the log. Safe for concurrent use.
type Refusals struct {
	mu   sync.Mutex
	seen map[string]struct{} // route and reason
}

// Log logs a refusal at a route for a reason, if it is the first. The number of different routes and reasons must be
// bounded.
func (l *Refusals) Log(log *slog.Logger, route, reason string, err error, more ...any) {
	if log != nil && l.First(route+" "+reason) {
		log.Warn("a caller was refused; more of the same kind are only counted",
			append([]any{"route", route, "error", err}, more...)...)
	}
}

// First reports whether something is the first of its kind.
func (l *Refusals) First(kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.seen[kind]; ok || len(l.seen) >= maxRefusals {
		return false
	}
	if l.seen == nil {
		l.seen = map[string]struct{}{}
	}
	l.seen[kind] = struct{}{}
	return true
}
