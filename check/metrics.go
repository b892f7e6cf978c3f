package check

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of checks and ingestion. No label holds a key.
type Metrics struct {
	checks   *prometheus.CounterVec
	seconds  prometheus.Histogram
	appended prometheus.Counter
	refused  prometheus.Counter
	unknown  prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		checks: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_checks_total",
			Help: "Checks by rule and outcome: allowed, denied, shadow_denied (would have been denied), and where Redis was away error_allow, error_deny, local_allowed, local_denied, local_shadow_denied; canceled where the caller went away. No rule: rule is empty."},
			[]string{"rule", "outcome"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_check_seconds", Help: "Time that answering one check took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14)}),
		appended: f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_appended_total", Help: "Events that this process appended to the log."}),
		refused:  f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_refused_total", Help: "Events that Redis refused or that were never sent."}),
		unknown:  f.NewCounter(prometheus.CounterOpts{Name: "streamcounter_events_append_unknown_total", Help: "Events whose reply was lost: they may be in the log or not."}),
	}
}

// observe notes how long an answer took.
func (m *Metrics) observe(start time.Time) { m.seconds.Observe(time.Since(start).Seconds()) }

// check counts one check by its rule's name and what became of it.
func (m *Metrics) check(rule, outcome string) { m.checks.WithLabelValues(rule, outcome).Inc() }
