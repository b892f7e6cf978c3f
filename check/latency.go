package check

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Latencies count how many calls took at most a number of seconds, since the process started.
type Latencies struct {
	Seconds []float64 // upper bounds, rising
	Calls   []uint64  // how many took at most each bound
	All     uint64
}

// Latencies sums the calls of all rules and outcomes. It is empty if there are no metrics.
func (s *Service) Latencies() (out Latencies) {
	if s.config.Metrics == nil {
		return out
	}
	each := make(chan prometheus.Metric)
	go func() {
		s.config.Metrics.seconds.Collect(each)
		close(each)
	}()
	for one := range each {
		var m dto.Metric
		if one.Write(&m) != nil {
			continue // cannot happen: the metric is ours
		}
		h := m.GetHistogram()
		if out.Seconds == nil {
			out.Seconds, out.Calls = make([]float64, len(h.GetBucket())), make([]uint64, len(h.GetBucket()))
		}
		for i, b := range h.GetBucket() {
			out.Seconds[i] = b.GetUpperBound()
			out.Calls[i] += b.GetCumulativeCount()
		}
		out.All += h.GetSampleCount()
	}
	return out
}

// Since subtracts the calls that are in before.
func (l Latencies) Since(before Latencies) Latencies {
	out := Latencies{Seconds: l.Seconds, Calls: append([]uint64{}, l.Calls...), All: l.All - before.All}
	for i := range before.Calls {
		out.Calls[i] -= before.Calls[i]
	}
	return out
}

// Quantile returns the time in seconds below which this share of the calls stayed. It assumes that calls are spread
// evenly between the bounds of a bucket. It is 0 if there were no calls.
func (l Latencies) Quantile(share float64) float64 {
	rank, from, below := share*float64(l.All), 0.0, uint64(0)
	for i, n := range l.Calls {
		if n > below && float64(n) >= rank {
			return from + (l.Seconds[i]-from)*(rank-float64(below))/float64(n-below)
		}
		from, below = l.Seconds[i], n
	}
	return from * min(1, float64(l.All)) // the call is slower than the last bound
}
