package check

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/trace"
)

// Metrics of checks. No label holds a key.
type Metrics struct {
	checks  *prometheus.CounterVec
	seconds *prometheus.HistogramVec

	mu     sync.Mutex                                // held while byRule is replaced
	byRule atomic.Pointer[map[string]*ruleLatencies] // of seconds; never changed in place
}

// ruleLatencies are the histograms of one rule, by the outcome of the call.
type ruleLatencies struct{ allowed, denied, failed prometheus.Observer }

func (l *ruleLatencies) of(allowed bool) prometheus.Observer {
	if allowed {
		return l.allowed
	}
	return l.denied
}

// maxRuleLabels bounds the histograms: calls of more rules share one with the rule "other".
const maxRuleLabels = 100

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		checks: f.NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_checks_total",
			Help: "Checks by rule and outcome: allowed or denied, after cache_ (from memory), lease_ (from a lease), " +
				"local_ (Redis away) or reserve_, then look_ or charge_ (the mode), then shadow_ (of a shadow rule); " +
				"error_allow and error_deny (Redis away; deny: also of a reservation); key_reused if an " +
				"Idempotency-Key was used for another request; canceled if the caller left. No rule: rule is empty."},
			[]string{"rule", "outcome"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: "streamcounter_check_seconds",
			Help: "Time that answering one call took, by the rule of its first key and by outcome: allowed, " +
				"denied, error. From the 101st rule on, rule is other.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14)}, []string{"rule", "outcome"}),
	}
	m.byRule.Store(&map[string]*ruleLatencies{})
	return m
}

// latencies returns the histograms of a rule. Looking labels up in the vector at each call would take three times as
// long.
func (m *Metrics) latencies(rule string) *ruleLatencies {
	if l := (*m.byRule.Load())[rule]; l != nil {
		return l
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.byRule.Load()
	if len(known) >= maxRuleLabels {
		rule = "other"
	}
	if l := known[rule]; l != nil {
		return l
	}
	more := maps.Clone(known)
	more[rule] = &ruleLatencies{m.seconds.WithLabelValues(rule, "allowed"), m.seconds.WithLabelValues(rule, "denied"),
		m.seconds.WithLabelValues(rule, "error")}
	m.byRule.Store(&more)
	return more[rule]
}

// check counts one check by its rule's name and its outcome.
func (m *Metrics) check(rule, outcome string) {
	if m != nil {
		m.checks.WithLabelValues(rule, outcome).Inc()
	}
}

// observe notes how long a call took that began at start. c is nil if the call could not be decided.
func (s *Service) observe(ctx context.Context, start time.Time, c *call, allowed bool, err error) {
	m := s.config.Metrics
	if m == nil {
		return
	}
	rule := ""
	if c != nil && len(c.requests) > 0 && c.requests[0].Plan != nil {
		rule = c.requests[0].Plan.Name()
	}
	l := m.latencies(rule)
	to := l.of(allowed)
	if err != nil {
		to = l.failed
	}
	seconds := time.Since(start).Seconds()
	if s.config.Tracer != nil {
		if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
			to.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds,
				prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	to.Observe(seconds)
}
