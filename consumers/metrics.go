package consumers

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/api"
)

// Metrics of the consumers. No label holds a key.
type Metrics struct {
	folded, merged, late, alreadyCounted, duplicate, trimmed, unmatched, claims, failures,
	corruptLevels, restated prometheus.Counter

	batchEvents, foldSeconds, decisionSeconds prometheus.Histogram

	ruleEvents, ruleUnits *prometheus.CounterVec
	throttled             *prometheus.GaugeVec
	transitions           *prometheus.CounterVec
	publishes             *prometheus.CounterVec
	deadLetters           *prometheus.CounterVec

	oldestUnread, aheadOfClock, pending, outboxDepth, outboxOldest, quarantined *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_" + name, Help: help})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_" + name, Help: help}, []string{"partition"})
	}
	m := &Metrics{
		folded: counter("events_folded_total", "Events counted by this process."),
		merged: counter("events_merged_total",
			"Events that shared the log entry of another event of their key."),
		late: counter("events_late_total", "Events that had left every window before they were folded."),
		alreadyCounted: counter("events_already_counted_total",
			"Events that another worker had counted before; they count once."),
		duplicate: counter("events_duplicate_total",
			"Events with an id that the producer had used before for the key; they are not counted."),
		trimmed: counter("events_trimmed_unread_total",
			"Events trimmed from the log before they were counted: lost."),
		unmatched:     counter("events_unmatched_total", "Events of keys that no rule matches."),
		claims:        counter("claims_total", "Events claimed from workers that had stopped answering."),
		failures:      counter("fold_failures_total", "Folds that failed and were tried again."),
		corruptLevels: counter("levels_corrupt_total", "Corrupt or foreign records of levels, removed by a sweep."),
		restated: counter("decisions_restated_total",
			"Throttle decisions that differed in NATS from those in Redis, and were published again, or released."),
		batchEvents: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_fold_batch_events",
			Help:    "Events per fold: those of one read, of all partitions; on a Cluster of one partition.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8)}),
		foldSeconds: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_fold_seconds",
			Help:    "Time that one fold took.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 2, 14)}),
		decisionSeconds: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_decision_seconds",
			Help: "Time from the event or check that crossed a limit to the PubAck of the throttle decision, by " +
				"Redis's clock.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}),
		ruleEvents: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_rule_events_total",
			Help: "Events folded, by the rule of their key."}, []string{"rule"}),
		ruleUnits: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_rule_units_total",
			Help: "Units of the events folded, by the rule of their key."}, []string{"rule"}),
		throttled: f.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcounter_throttled_keys",
			Help: "Keys that are throttled now, by rule, in the partitions that this process relays. Add up all " +
				"processes to get the total."}, []string{"rule"}),
		transitions: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_transitions_total",
			Help: "Transitions published."}, []string{"rule", "state"}),
		publishes: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_relay_publishes_total",
			Help: "Publishes to NATS by outcome: acked, duplicate (stored before), failed (sent again), " +
				"unexpected_duplicate (dropped as a copy, not sent before)."}, []string{"outcome"}),
		oldestUnread: gauge("oldest_unread_seconds", "Age of the oldest event that no worker has read."),
		aheadOfClock: gauge("newest_event_ahead_seconds",
			"How far the newest event's ID is ahead of Redis's clock; until then nothing trims the stream."),
		pending:     gauge("pending_events", "Events read and not yet counted."),
		outboxDepth: gauge("outbox_depth", "Transitions waiting to be published."),
		quarantined: gauge("partition_quarantined",
			"1 while this process does not work on the partition, because one of its keys has the wrong type."),
		outboxOldest: gauge("outbox_oldest_seconds", "Age of the oldest transition waiting."),
		deadLetters: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_dead_letters_total",
			Help: "Dead letters written, by kind: invalid (event), misplaced (event in the wrong partition), " +
				"refused (event, by Redis), outbox (entry)."}, []string{"kind"}),
	}
	m.startAtZero()
	return m
}

// startAtZero creates the series whose labels are known: Prometheus sees no increase if a series begins with 1.
func (m *Metrics) startAtZero() {
	for _, kind := range deadLetterKinds {
		m.deadLetters.WithLabelValues(kind)
	}
	for _, outcome := range []string{"acked", "duplicate", "failed", "unexpected_duplicate"} {
		m.publishes.WithLabelValues(outcome)
	}
}

// Publish counts one publish by its outcome; the publisher calls it.
func (m *Metrics) Publish(outcome string) { m.publishes.WithLabelValues(outcome).Inc() }

func (m *Metrics) transition(t api.Transition) {
	m.transitions.WithLabelValues(t.Rule, string(t.State)).Inc()
}

func label(p int) string { return strconv.Itoa(p) }
