package check

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkLocalAnswer is what a check costs that is answered from a lease: alone, and by callers at once.
func BenchmarkLocalAnswer(b *testing.B) {
	c := redis.NewClient(&redis.Options{Addr: streamtest.EmbeddedRedis(b).Addr(), MaxRetries: -1,
		ContextTimeoutEnabled: true})
	b.Cleanup(func() { _ = c.Close() })
	keys, err := stream.NewKeys(streamtest.Prefix(b), 16)
	testkit.Must(b, err)
	hot := rule("*", windows.Window{Limit: windows.MaxLimit, Per: time.Minute})
	hot.Lease = time.Second
	s, err := NewService(Config{Counter: windows.NewRedis(c, keys), Rules: windows.Fixed(rulesOf(b, hot)).Rules,
		Metrics: NewMetrics(prometheus.NewRegistry())})
	testkit.Must(b, err)
	b.Cleanup(s.Close)
	ask := func() {
		if a, err := s.Check(context.Background(), api.CheckRequest{Key: "user:4711"}); err != nil || !a.Allowed {
			b.Error(a, err)
		}
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ask()
		}
	})
	b.Run("at once", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				ask()
			}
		})
	})
}
