package envoy

import (
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A slow scrape holds up no check: the lock is free while the series are passed on.
func TestAScrapeHoldsNoLock(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry(), 0.8)
	m.of([]string{"shop"})
	to := make(chan prometheus.Metric)
	go func() { m.Collect(to); close(to) }()
	<-to // the others wait to be taken
	if !m.mu.TryLock() {
		t.Error("a scrape that has begun holds the lock")
	} else {
		m.mu.Unlock()
	}
	n := 1
	for range to {
		n++
	}
	if n != len(limitNames) {
		t.Errorf("%d series, want %d", n, len(limitNames))
	}
}

// With as many series as there may be, a limit that has none counts as "other" and waits for no other check.
func TestTooManySeriesCountAsOther(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry(), 0.8)
	for i := range maxSeries {
		m.of([]string{"shop", strconv.Itoa(i)})
	}
	want := m.of([]string{"shop", "one more"})
	m.mu.RLock()
	defer m.mu.RUnlock()
	got := make(chan *limitMetrics)
	go func() { got <- m.of([]string{"shop", "another"}) }()
	select {
	case one := <-got:
		if one != want || one.labels["domain"] != "other" || len(m.series) != maxSeries+1 {
			t.Errorf("%v of %d series", one.labels, len(m.series))
		}
	case <-time.After(time.Minute):
		t.Error("a limit without series waits for those who read")
	}
}
