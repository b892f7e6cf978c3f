package client_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/api"
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

func TestMain(m *testing.M) { streamtest.Main(m) }

// patience is how long a test waits for what must come. Nothing should take that long.
const patience = time.Minute

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

// way is one way to ask: through a server at an address.
type way struct {
	name  string
	serve func(w *world, t testing.TB) (addr string)
	dial  func(t testing.TB, w *world, addr string) client.Checker
}

var transports = []way{
	{"http", (*world).serveHTTP, dialHTTP},
	{"redis", func(w *world, _ testing.TB) string { return w.redis.Options().Addr }, overRedis},
	{"grpc", func(w *world, t testing.TB) string { return w.serveGRPC(t, true) }, dialGRPC},
}

var reservers = transports[:2]

func (way way) open(t testing.TB, w *world) client.Checker { return way.dial(t, w, way.serve(w, t)) }

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

func dialHTTP(t testing.TB, _ *world, addr string) client.Checker { return overHTTP(t, addr) }
func dialGRPC(t testing.TB, _ *world, addr string) client.Checker { return overGRPC(t, addr) }

func overRedis(t testing.TB, w *world, addr string) client.Checker {
	t.Helper()
	r, err := direct.NewRedis(t.Context(), streamtest.Connect(t, addr), direct.Config{Prefix: w.prefix,
		Rules: windows.Fixed(w.rules).Rules, Now: w.clock.Load})
	testkit.Must(t, err)
	return r
}

// serveHTTP returns the address of a server.
func (w *world) serveHTTP(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(httpapi.NewRouter(nil, w.server.Routes(nil)...))
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

// ask makes one call of a kind, and returns its error: of each, that of the last check or of the first.
func ask(ctx context.Context, c client.Checker, kind string, reqs ...api.CheckRequest) (err error) {
	var list []api.Each
	switch first := reqs[0]; kind {
	case "check":
		_, err = c.Check(ctx, first)
	case "all":
		_, err = c.CheckAll(ctx, reqs)
	case "each", "first of each":
		list, err = c.CheckEach(ctx, reqs)
	case "peek":
		_, err = c.Peek(ctx, first.Key)
	case "reserve":
		_, err = c.(client.Reserver).Reserve(ctx, api.ReservationRequest{CheckRequest: first})
	case "acquire":
		_, err = c.(*client.Client).Acquire(ctx, first.Key, first.Cost)
	case "commit": // the key is the id
		_, err = c.(client.Reserver).Commit(ctx, first.Key, api.CommitRequest{})
	case "cancel":
		_, err = c.(client.Reserver).Cancel(ctx, first.Key)
	case "renew":
		_, err = c.(client.Reserver).Renew(ctx, first.Key, api.RenewRequest{})
	}
	switch {
	case len(list) > 0 && kind == "each":
		err = list[len(list)-1].Err
	case len(list) > 0:
		err = list[0].Err
	}
	return err
}

// The outcomes of a call that was not sent, and of one whose answer was lost.
const wasNotSent, wasLost = "unavailable, not sent, no answer", "outcome-unknown, no answer"

// outcome has the name of an error, and what it says about the call.
func outcome(err error) string {
	text := api.NameOf(err)
	if errors.Is(err, api.ErrNotSent) {
		text += ", not sent"
	}
	if errors.Is(err, api.ErrNoAnswer) {
		text += ", no answer"
	}
	return strings.TrimPrefix(text, ", ")
}
