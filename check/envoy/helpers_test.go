package envoy_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// world is a decision core over one Redis, under a prefix of its own, with a clock
// that stands still until it is moved.
type world struct {
	clock   atomic.Int64
	service *check.Service
	rules   *windows.Source
}

// Deadlines of a check: one that the test lets pass, and one that must not pass, however busy the machine is.
const (
	timeout  = 200 * time.Millisecond
	patience = time.Minute
)

func newWorld(t *testing.T, config check.Config, c redis.UniversalClient, rules ...*windows.Rule) *world {
	t.Helper()
	w := &world{}
	w.clock.Store(1_700_000_000_000)
	keys, err := stream.NewKeys(streamtest.Prefix(t), 16)
	testkit.Must(t, err)
	loaded, err := windows.NewRules(rules)
	testkit.Must(t, err)
	w.rules = windows.Fixed(loaded)
	counter := counters.New(c, keys)
	counter.Now = w.clock.Load
	config.Counter, config.Metrics = counter, check.NewMetrics(prometheus.NewRegistry())
	config.Rules = windows.Under(counter.NewOverrides(nil), w.rules.Rules)
	w.service, err = check.NewService(config)
	testkit.Must(t, err)
	return w
}

func (w *world) advance(d time.Duration) { w.clock.Add(d.Milliseconds()) }

// used returns what a key has used of its first window.
func (w *world) used(t *testing.T, key string) int64 {
	t.Helper()
	k, err := w.service.Peek(t.Context(), key)
	testkit.Must(t, err)
	return k.Windows[0].Used
}

// dial serves the world's service over gRPC as the program does, and connects.
func (w *world) dial(t *testing.T, c envoy.Config) rlsv3.RateLimitServiceClient {
	t.Helper()
	c.Rules = w.rules.Rules
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.ForceServerCodecV2(envoy.Codec{}))
	rlsv3.RegisterRateLimitServiceServer(s, envoy.NewService(w.service, c))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	testkit.Must(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return rlsv3.NewRateLimitServiceClient(conn)
}
