package client_test

import (
	"context"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/direct"
	scgrpc "github.com/streamcounter/streamcounter/client/grpc"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// world is a server over one Redis, under a prefix of its own, with a clock that
// stands still until it is moved.
type world struct {
	redis   *redis.Client
	prefix  string
	clock   atomic.Int64
	rules   *windows.Rules
	counter *counters.Redis
	service *check.Service
	server  *httpapi.Server
}

func newWorld(t testing.TB, c *redis.Client, timeout time.Duration, rules ...*windows.Rule) *world {
	t.Helper()
	w := &world{redis: c, prefix: streamtest.Prefix(t)}
	w.clock.Store(1_700_000_000_000)
	keys, err := stream.NewKeys(w.prefix, 16)
	testkit.Must(t, err)
	log, err := stream.NewLog(c, keys, time.Minute)
	testkit.Must(t, err)
	w.rules, err = windows.NewRules(rules)
	testkit.Must(t, err)
	w.counter = counters.New(c, keys)
	w.counter.Now = w.clock.Load
	w.service, err = check.NewService(check.Config{
		Counter: w.counter, Metrics: check.NewMetrics(prometheus.NewRegistry()), Timeout: timeout,
		Rules: windows.Under(w.counter.NewOverrides(nil), windows.Fixed(w.rules).Rules),
	})
	testkit.Must(t, err)
	w.server, err = httpapi.NewServer(httpapi.Config{Checks: w.service, Log: log,
		Metrics: httpapi.NewMetrics(prometheus.NewRegistry())})
	testkit.Must(t, err)
	return w
}

// way is one way to ask.
type way struct {
	name string
	// whole: answers have all that HTTP's have.
	whole bool
	open  func(t testing.TB, w *world) client.Checker
}

var transports = []way{
	{"http", true, func(t testing.TB, w *world) client.Checker { return overHTTP(t, w.serveHTTP(t)) }},
	{"grpc", true, func(t testing.TB, w *world) client.Checker { return overGRPC(t, w.serveGRPC(t, true)) }},
	{"grpc without the detail", false, func(t testing.TB, w *world) client.Checker {
		return overGRPC(t,
			w.serveGRPC(t, false))
	}},
	{"redis", true, func(t testing.TB, w *world) client.Checker { return overRedis(t, w, w.redis) }},
}

func onEveryTransport(t *testing.T, test func(t *testing.T, w *world, c client.Checker, way way),
	rules ...*windows.Rule) {
	for _, way := range transports {
		t.Run(way.name, func(t *testing.T) {
			w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience, rules...)
			test(t, w, way.open(t, w), way)
		})
	}
}

func overHTTP(t testing.TB, addr string) *client.HTTP {
	t.Helper()
	h, err := client.NewHTTP("http://"+addr, client.HTTPConfig{})
	testkit.Must(t, err)
	t.Cleanup(h.Close)
	return h
}

func overGRPC(t testing.TB, addr string) *scgrpc.Client {
	t.Helper()
	g, err := scgrpc.New("passthrough:///"+addr, scgrpc.Config{})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func overRedis(t testing.TB, w *world, c redis.UniversalClient) *direct.Redis {
	t.Helper()
	r, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: windows.Fixed(w.rules).Rules, Prefix: w.prefix,
		Now: w.clock.Load})
	testkit.Must(t, err)
	return r
}

// serveHTTP returns the address of a server.
func (w *world) serveHTTP(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(w.server.Handler(nil))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// serveGRPC returns the address of a server. Without detail, the server does not have the detail, like another
// implementation of Envoy's service.
func (w *world) serveGRPC(t testing.TB, detail bool) string {
	t.Helper()
	service := envoy.NewService(w.service, envoy.Config{Rules: windows.Fixed(w.rules).Rules})
	return serveRLS(t, service, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		if md, _ := metadata.FromIncomingContext(ctx); !detail {
			md.Delete("streamcounter-detail")
			ctx = metadata.NewIncomingContext(ctx, md)
		}
		return next(ctx, req)
	}))
}

// serveRLS returns the address of a server of Envoy's service.
func serveRLS(t testing.TB, service rls.RateLimitServiceServer, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	s := grpc.NewServer(options...)
	rls.RegisterRateLimitServiceServer(s, service)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return l.Addr().String()
}
