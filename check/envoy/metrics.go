package envoy

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/check/envoy/config"
)

// maxSeries bounds how many limits have metrics of their own. Limits with detailed_metric and limits that descriptors
// bring have one series per value that is asked for. Further ones count as "other".
const maxSeries = 10_000

const other = "other" // domains can be any caller's text too

// Metrics has the names and labels that the statistics of envoyproxy/ratelimit have in Prometheus, for dashboards and
// alerts that exist already. It counts hits, not requests.
type Metrics struct {
	near    float64 // share of a limit from which on hits are near it
	mu      sync.RWMutex
	series  map[string]*limitMetrics // labels, joined → counters
	calls   prometheus.Counter
	seconds prometheus.Observer
	failed  *prometheus.CounterVec
	shadow  prometheus.Counter
	loaded  [2]prometheus.Counter // with success, with an error
}

// limitMetrics are the counters of one limit, in the order of limitNames.
type limitMetrics struct {
	labels prometheus.Labels
	hits   [len(limitNames)]atomic.Uint64
}

var limitNames = [...]string{"total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"}

const (
	totalHits = iota
	overLimit
	nearLimit
	withinLimit
	shadowMode
)

// NewMetrics registers the metrics. near is the share of a limit above which hits are near it, envoyproxy/ratelimit's
// NEAR_LIMIT_RATIO.
func NewMetrics(reg prometheus.Registerer, near float64) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{near: near, series: map[string]*limitMetrics{},
		calls: f.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_service_total_requests",
			Help: "Calls of the rate limit service."}, []string{"grpc_method"}).WithLabelValues("ShouldRateLimit"),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: "ratelimit_service_response_time_seconds",
			Help:    "Time that answering a call took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}, []string{"grpc_method"}).WithLabelValues("ShouldRateLimit"),
		failed: f.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_service_should_rate_limit_error",
			Help: "Calls answered with an error: Redis does not answer, or the request is wrong.",
		}, []string{"err_type"}),
		shadow: f.NewCounter(prometheus.CounterOpts{Name: "ratelimit_service_global_shadow_mode",
			Help: "Requests over a limit that were admitted, as no limit denies."}),
	}
	for i, outcome := range []string{"success", "error"} {
		m.loaded[i] = f.NewCounter(prometheus.CounterOpts{Name: "ratelimit_service_config_load_" + outcome,
			Help: "Attempts to load the limits that ended with " + outcome + "."})
	}
	m.failed.WithLabelValues("redis_error")
	m.failed.WithLabelValues("service_error")
	reg.MustRegister(m)
	return m
}

// Describe sends nothing, because the number of labels differs from limit to limit.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.RLock()
	series := slices.Collect(maps.Values(m.series))
	m.mu.RUnlock() // the receiver may be slow
	for _, one := range series {
		for i, name := range limitNames {
			desc := prometheus.NewDesc("ratelimit_service_rate_limit_"+name,
				"Hits by limit: domain and the descriptors that lead to it.", nil, one.labels)
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(one.hits[i].Load()))
		}
	}
}

// began counts a call. It returns a function for the end of the call.
func (m *Metrics) began() func(error) {
	if m == nil {
		return func(error) {}
	}
	m.calls.Inc()
	start := time.Now()
	return func(err error) {
		m.seconds.Observe(time.Since(start).Seconds())
		switch status.Code(err) {
		case codes.OK, codes.Canceled, codes.DeadlineExceeded: // after the last two, the caller has gone
		case codes.Unavailable:
			m.failed.WithLabelValues("redis_error").Inc()
		default:
			m.failed.WithLabelValues("service_error").Inc()
		}
	}
}

// Loaded counts an attempt to load the limits.
func (m *Metrics) Loaded(err error) {
	switch {
	case m == nil:
	case err == nil:
		m.loaded[0].Inc()
	default:
		m.loaded[1].Inc()
	}
}

func (m *Metrics) shadowed() {
	if m != nil {
		m.shadow.Inc()
	}
}

// limits counts the outcome of each descriptor with a limit, for its own limit alone.
func (m *Metrics) limits(req *rlsv3.RateLimitRequest, list []descriptor) {
	if m == nil {
		return
	}
	for i := range list {
		d := &list[i]
		if !d.limited || d.skipped || d.Unlimited || d.refund || d.hits <= 0 {
			continue
		}
		if d.Labels == nil {
			d.Labels = config.LabelsOf(req.Domain, req.Descriptors[i])
		}
		m.of(d.Labels).add(d, m.near)
	}
}

func (s *limitMetrics) add(d *descriptor, near float64) {
	hits := uint64(d.hits)
	s.hits[totalHits].Add(hits)
	if d.over {
		s.hits[overLimit].Add(hits) // none of a request that is over is admitted
		if d.Shadow || d.Watched {
			s.hits[shadowMode].Add(hits)
		}
		return
	}
	s.hits[withinLimit].Add(hits)
	if above := d.used - int64(math.Floor(float64(d.PerUnit)*near)); d.used >= 0 && d.PerUnit > 0 && above > 0 {
		s.hits[nearLimit].Add(min(hits, uint64(above)))
	}
}

// of returns the counters of a limit.
func (m *Metrics) of(labels []string) *limitMetrics {
	id := strings.ToValidUTF8(strings.Join(labels, "\x00"), "?")
	m.mu.RLock()
	one := m.series[id]
	if one == nil && len(m.series) >= maxSeries {
		one = m.series[other]
	}
	m.mu.RUnlock()
	if one != nil {
		return one
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.series) >= maxSeries {
		labels, id = []string{other}, other
	}
	if one = m.series[id]; one == nil {
		one = &limitMetrics{labels: prometheus.Labels{}}
		for i, v := range labels {
			name := "domain"
			if i > 0 {
				name = "key" + strconv.Itoa(i)
			}
			one.labels[name] = strings.ToValidUTF8(v, "?")
		}
		m.series[id] = one
	}
	return one
}
