package check

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of checks. No label holds a key.
type Metrics struct {
	checks  *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		checks: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_checks_total",
			Help: "Checks by rule and outcome: allowed, denied, of shadow rules shadow_allowed and " +
				"shadow_denied, from memory cache_denied and cache_shadow_denied, and where Redis was " +
				"away error_allow, error_deny, local_allowed, local_denied, local_shadow_denied; " +
				"canceled where the caller went away. No rule: rule is empty."},
			[]string{"rule", "outcome"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{Name: "streamcounter_check_seconds",
			Help:    "Time that answering one check took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14)}),
	}
}

// check counts one check by its rule's name and what became of it.
func (m *Metrics) check(rule, outcome string) {
	if m != nil {
		m.checks.WithLabelValues(rule, outcome).Inc()
	}
}

// observe notes how long an answer took that began at start.
func (s *Service) observe(start time.Time) {
	if m := s.config.Metrics; m != nil {
		m.seconds.Observe(time.Since(start).Seconds())
	}
}
