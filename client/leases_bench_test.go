package client_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkLeases measures what one check of a hot key over HTTP costs, with leases of the client and without: four
// clients of 16 callers each that ask all they can, of a limit of 10,000 a second. part is the part of the limit that
// they were given, p50-ns the median of the answers from memory.
func BenchmarkLeases(b *testing.B) {
	const limit, clients, callers = 10_000, 4, 16
	for _, lease := range []time.Duration{0, 500 * time.Millisecond} {
		b.Run("lease="+lease.String(), func(b *testing.B) {
			c := streamtest.Connect(b, streamtest.OwnRedis(b).URL())
			w := newWorld(b, c, patience, &windows.Rule{Name: "hot", Match: "*", Lease: lease,
				Windows: []windows.Window{{Limit: limit, Per: time.Second}}})
			w.counter.Now = nil // Redis's clock
			b.Cleanup(w.service.Close)
			url := "http://" + w.serveHTTP(b)
			var asking sync.WaitGroup
			var left, admitted atomic.Int64
			left.Store(int64(b.N))
			took := make([][]time.Duration, clients*callers) // each 64th answer from memory
			before, err := measure.CPU(b.Context(), c)
			testkit.Must(b, err)
			b.ResetTimer()
			for n := range clients {
				d, err := client.Dial(url, client.Config{Leases: 10, Timeout: 5 * time.Second, NoIdempotency: true})
				testkit.Must(b, err)
				b.Cleanup(d.Close)
				for m := range callers {
					asking.Go(func() { callUp(b, d, &left, &admitted, &took[n*callers+m]) })
				}
			}
			asking.Wait()
			b.StopTimer()
			after, err := measure.CPU(b.Context(), c)
			testkit.Must(b, err)
			b.ReportMetric(float64((after-before).Microseconds())/float64(b.N), "redis-µs/op")
			b.ReportMetric(100*(after-before).Seconds()/b.Elapsed().Seconds(), "redis-%cpu")
			b.ReportMetric(float64(admitted.Load())/limit/max(b.Elapsed().Seconds(), 1), "part")
			if all := slices.Sorted(slices.Values(slices.Concat(took...))); len(all) > 0 {
				b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), "p50-ns")
			}
		})
	}
}

func callUp(b *testing.B, d *client.Client, left, admitted *atomic.Int64, took *[]time.Duration) {
	for n := 0; left.Add(-1) >= 0; n++ {
		began := time.Now()
		a, err := d.Check(context.Background(), api.CheckRequest{Key: "user:4711"})
		if err != nil {
			b.Error(err)
			return
		}
		if a.Source == api.SourceLease && n%64 == 0 {
			*took = append(*took, time.Since(began))
		}
		if a.Allowed {
			admitted.Add(1)
		}
	}
}
