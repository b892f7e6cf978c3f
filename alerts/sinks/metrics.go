package sinks

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of all sinks of a process.
type Metrics struct {
	deliveries *prometheus.CounterVec
	oldest     *prometheus.GaugeVec
	delivering *prometheus.GaugeVec
	locks      *prometheus.CounterVec
}

// outcomes are those of a delivery.
var outcomes = []string{"delivered", "retried", "dropped", "expired"}

// lockOutcomes are those of an attempt to take a lock.
var lockOutcomes = []string{"taken", "taken_over", "refused", "failed"}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		deliveries: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_sink_deliveries_total",
			Help: "Alerts by sink and outcome: delivered, retried (an attempt failed, another follows), dropped " +
				"(the endpoint will never take it), expired (undelivered for longer than give_up, or than " +
				"JetStream keeps it)."}, []string{"sink", "outcome"}),
		oldest: f.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_sink_oldest_undelivered_seconds",
			Help: "Age of the oldest alert that the sink's endpoint has not taken yet; 0: there is none, or another " +
				"process delivers for the sink."}, []string{"sink"}),
		delivering: f.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_sink_delivering",
			Help: "1 while this process delivers for the sink, 0 while another one does or JetStream is away."},
			[]string{"sink"}),
		locks: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_sink_locks_total",
			Help: "Attempts to take the sink's lock, by outcome: taken, taken_over (nobody renewed it, and NATS " +
				"did not remove it), refused (another process holds it), failed."}, []string{"sink", "outcome"}),
	}
}

// begin creates the series of a sink: Prometheus sees no increase if a series begins with 1.
func (m *Metrics) begin(sink string) {
	for _, outcome := range outcomes {
		m.deliveries.WithLabelValues(sink, outcome)
	}
	for _, outcome := range lockOutcomes {
		m.locks.WithLabelValues(sink, outcome)
	}
	m.oldest.WithLabelValues(sink).Set(0)
	m.delivering.WithLabelValues(sink).Set(0)
}

// end removes the gauges of a sink that was removed; its counters stay.
func (m *Metrics) end(sink string) {
	m.oldest.DeleteLabelValues(sink)
	m.delivering.DeleteLabelValues(sink)
}
