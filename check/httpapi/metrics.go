package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of ingestion.
type Metrics struct{ appended, refused, unknown prometheus.Counter }

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		appended: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_appended_total",
			Help: "Events that this process appended to the log."}),
		refused: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_refused_total",
			Help: "Events that Redis refused or that were never sent."}),
		unknown: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_unknown_total",
			Help: "Events whose reply was lost: they may be in the log or not."}),
	}
}
