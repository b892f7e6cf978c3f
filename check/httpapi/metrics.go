package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of ingestion, and of the requests that are refused while too much is under way.
type Metrics struct {
	appended, refused, unknown prometheus.Counter
	busy                       *prometheus.CounterVec
}

// Reasons why a request is refused while too much is under way.
const (
	busyListings = "listings"
	busyMemory   = "memory"
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		appended: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_appended_total",
			Help: "Events that this process appended to the log."}),
		refused: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_refused_total",
			Help: "Events that Redis refused or that were never sent."}),
		unknown: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_unknown_total",
			Help: "Events whose reply was lost: they may be in the log or not."}),
		busy: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_http_busy_total",
			Help: "Requests refused with 503 while too much was under way: listings, or memory of bodies."},
			[]string{"reason"}),
	}
	for _, reason := range []string{busyListings, busyMemory} {
		m.busy.WithLabelValues(reason)
	}
	return m
}
