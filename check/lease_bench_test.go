package check

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkLeases measures what one check of a hot key costs Redis, with leases and without: four processes of 16
// callers each that ask all they can, of a limit of 10,000 a second. part is the part of the limit that they were
// given.
func BenchmarkLeases(b *testing.B) {
	const limit, processes, callers = 10_000, 4, 16
	for _, lease := range []time.Duration{0, 500 * time.Millisecond} {
		b.Run("lease="+lease.String(), func(b *testing.B) {
			ctx := context.Background()
			c := streamtest.Connect(b, streamtest.OwnRedis(b).URL())
			keys, err := stream.NewKeys(streamtest.Prefix(b), 16)
			testkit.Must(b, err)
			hot := rule("*", windows.Window{Limit: limit, Per: time.Second})
			hot.Lease = lease
			var asking sync.WaitGroup
			var left, admitted atomic.Int64
			left.Store(int64(b.N))
			before, err := measure.CPU(ctx, c)
			testkit.Must(b, err)
			b.ResetTimer()
			for range processes {
				s, err := NewService(Config{Counter: counters.New(c, keys),
					Rules: windows.Fixed(rulesOf(b, hot)).Rules, Metrics: NewMetrics(prometheus.NewRegistry())})
				testkit.Must(b, err)
				b.Cleanup(s.Close)
				for range callers {
					asking.Go(func() {
						for left.Add(-1) >= 0 {
							a, err := s.Check(ctx, api.CheckRequest{Key: "user:4711"})
							if err != nil {
								b.Error(err)
								return
							}
							if a.Allowed {
								admitted.Add(1)
							}
						}
					})
				}
			}
			asking.Wait()
			b.StopTimer()
			after, err := measure.CPU(ctx, c)
			testkit.Must(b, err)
			b.ReportMetric(float64((after-before).Microseconds())/float64(b.N), "redis-µs/op")
			b.ReportMetric(100*(after-before).Seconds()/b.Elapsed().Seconds(), "redis-%cpu")
			b.ReportMetric(float64(admitted.Load())/limit/max(b.Elapsed().Seconds(), 1), "part")
		})
	}
}
