package counters

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/time/rate"
)

// ReportCorrupt counts each corrupt or foreign key in Redis that an operation finds, in a metric of reg, which may be
// nil. It logs the names of at most ten at once, and then of one every ten seconds. It also logs the names of hashes
// of levels that a listing cannot read. Call it before the first operation.
func (s *Redis) ReportCorrupt(reg prometheus.Registerer, log *slog.Logger) {
	found := promauto.With(reg).NewCounter(prometheus.CounterOpts{Name: "streamcounter_counters_corrupt_total",
		Help: "Counters and reservations of a key that were corrupt or foreign; they start from zero."})
	lines := rate.NewLimiter(rate.Every(10*time.Second), 10)
	s.lua.Corrupt = func(name string) {
		found.Inc()
		if lines.Allow() {
			log.Error("a key in Redis is corrupt or foreign, and counts from zero again", "key", name)
		}
	}
	s.unlisted = func(name string) {
		if lines.Allow() {
			log.Error("a key in Redis has the wrong type: listings leave out its partition", "key", name)
		}
	}
}
