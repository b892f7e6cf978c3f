package consumers

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/api"
)

// Metrics of the consumers. No label holds a key.
type Metrics struct {
	folded, merged, late, gone, again, trimmed, dead, unmatched, claims, failures,
	unreadable, forgotten, outboxDead prometheus.Counter

	batchEvents, foldSeconds prometheus.Histogram
	transitions              *prometheus.CounterVec
	publishes                *prometheus.CounterVec

	oldestUnread, pending, outboxDepth, outboxOldest, aside *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_" + name, Help: help})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_" + name, Help: help}, []string{"partition"})
	}
	return &Metrics{
		folded:     counter("events_folded_total", "Events counted by this process."),
		merged:     counter("events_merged_total", "Events that shared the log entry of another event of their key."),
		late:       counter("events_late_total", "Events that had left every window before they were folded."),
		gone:       counter("events_gone_total", "Events that somebody else had counted first, so they were not counted again."),
		again:      counter("events_repeated_total", "Events whose id their producer had used before for the key, so they were not counted."),
		trimmed:    counter("events_trimmed_unread_total", "Events trimmed from the log before they were counted: lost."),
		dead:       counter("events_dead_total", "Events that could not be counted, put to the dead stream."),
		unmatched:  counter("events_unmatched_total", "Events of keys that no rule matches."),
		claims:     counter("claims_total", "Events claimed from workers that had stopped answering."),
		failures:   counter("fold_failures_total", "Folds that failed and were tried again."),
		unreadable: counter("counters_unreadable_total", "Counters that held what none of ours wrote when an event was folded; they began anew."),
		forgotten:  counter("levels_forgotten_total", "Records of levels that none of ours wrote, forgotten by a sweep."),
		outboxDead: counter("outbox_dead_total", "Outbox entries that are no transition, put to the dead stream."),
		batchEvents: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_fold_batch_events", Help: "Events per folded batch.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8)}),
		foldSeconds: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_fold_seconds", Help: "Time that folding one batch took.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 2, 14)}),
		transitions: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_transitions_total", Help: "Transitions published."}, []string{"rule", "state"}),
		publishes: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_relay_publishes_total",
			Help: "Publishes to NATS by outcome: acked, duplicate (stored before), failed (sent again)."}, []string{"outcome"}),
		oldestUnread: gauge("oldest_unread_seconds", "Age of the oldest event that no worker has read."),
		pending:      gauge("pending_events", "Events read and not yet counted."),
		outboxDepth:  gauge("outbox_depth", "Transitions waiting to be published."),
		aside:        gauge("partition_aside", "1 while a partition is left out, as a key of it is of another type than ours."),
		outboxOldest: gauge("outbox_oldest_seconds", "Age of the oldest transition waiting."),
	}
}

// Publish counts one publish by its outcome; the publisher calls it.
func (m *Metrics) Publish(outcome string) { m.publishes.WithLabelValues(outcome).Inc() }

func (m *Metrics) transition(t api.Transition) {
	m.transitions.WithLabelValues(t.Rule, string(t.State)).Inc()
}

func label(p int) string { return strconv.Itoa(p) }
