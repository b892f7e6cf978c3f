package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

func connectRedis(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: strings.TrimPrefix(addr, "redis://"), MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: 2 * time.Second, DialerRetries: 1, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// world is a server over one Redis, under a prefix of its own, with a clock that
// stands still until it is moved.
type world struct {
	redis   *redis.Client
	prefix  string
	clock   atomic.Int64
	rules   *windows.Rules
	service *check.Service
}

func newWorld(t testing.TB, c *redis.Client, timeout time.Duration, rules ...*windows.Rule) *world {
	t.Helper()
	w := &world{redis: c, prefix: streamtest.Prefix(t)}
	w.clock.Store(1_700_000_000_000)
	keys, err := stream.NewKeys(w.prefix, 16)
	must(t, err)
	log, err := stream.NewLog(c, keys, time.Minute)
	must(t, err)
	w.rules, err = windows.NewRules(rules)
	must(t, err)
	counter := windows.NewRedis(c, keys)
	counter.Now = w.clock.Load
	w.service, err = check.NewService(check.Config{
		Counter: counter, Log: log, Rules: windows.Fixed(w.rules).Rules, Metrics: check.NewMetrics(prometheus.NewRegistry()), Timeout: timeout,
	})
	must(t, err)
	return w
}

// transport is one way to ask.
type transport struct {
	name string
	// whole: answers have all that HTTP's have.
	whole bool
	open  func(t testing.TB, w *world) client.Checker
}

var transports = []transport{
	{"http", true, func(t testing.TB, w *world) client.Checker { return overHTTP(t, w.serveHTTP(t)) }},
	{"grpc", true, func(t testing.TB, w *world) client.Checker { return overGRPC(t, w.serveGRPC(t, true)) }},
	{"grpc without the detail", false, func(t testing.TB, w *world) client.Checker { return overGRPC(t, w.serveGRPC(t, false)) }},
	{"redis", true, func(t testing.TB, w *world) client.Checker { return overRedis(t, w, w.redis) }},
}

func onEveryTransport(t *testing.T, test func(t *testing.T, w *world, c client.Checker, way transport), rules ...*windows.Rule) {
	for _, way := range transports {
		t.Run(way.name, func(t *testing.T) {
			w := newWorld(t, connectRedis(t, streamtest.Redis(t)), patience, rules...)
			test(t, w, way.open(t, w), way)
		})
	}
}

func overHTTP(t testing.TB, addr string) *client.HTTP {
	t.Helper()
	h, err := client.NewHTTP("http://"+addr, client.HTTPConfig{})
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

func overGRPC(t testing.TB, addr string) *client.GRPC {
	t.Helper()
	g, err := client.NewGRPC("passthrough:///"+addr, client.GRPCConfig{})
	must(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func overRedis(t testing.TB, w *world, c redis.UniversalClient) *direct.Redis {
	t.Helper()
	r, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: windows.Fixed(w.rules).Rules, Prefix: w.prefix, Now: w.clock.Load})
	must(t, err)
	return r
}

// serveHTTP gives the address of a server.
func (w *world) serveHTTP(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(w.each(w.service.Handler(nil)))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// each answers the batch form with independent verdicts.
func (w *world) each(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var in struct {
			Checks []api.CheckRequest
			Each   bool
		}
		if json.Unmarshal(body, &in) != nil || !in.Each {
			next.ServeHTTP(rw, r)
			return
		}
		type one struct {
			api.CheckAnswer
			Error  string `json:"error,omitempty"`
			Detail string `json:"detail,omitempty"`
		}
		out := struct {
			Checks []one `json:"checks"`
		}{}
		for _, c := range in.Checks {
			a, err := w.service.Check(r.Context(), c)
			if err != nil {
				out.Checks = append(out.Checks, one{a, api.ProblemPrefix + nameOf(err), err.Error()})
				continue
			}
			out.Checks = append(out.Checks, one{CheckAnswer: a})
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(out)
	})
}

// nameOf is the name of an error's problem.
func nameOf(err error) string {
	for _, name := range []string{"bad-key", "bad-count", "cost-exceeds-limit", "no-rule", "unavailable", "unauthenticated", "forbidden"} {
		if is(err, api.ErrorNamed(name)) {
			return name
		}
	}
	return "unavailable"
}

// serveGRPC gives the address of a server that speaks as ours does.
func (w *world) serveGRPC(t testing.TB, detail bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, &rlsServer{w: w, detail: detail})
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return l.Addr().String()
}

type rlsServer struct {
	rls.UnimplementedRateLimitServiceServer
	w      *world
	detail bool
}

func (s *rlsServer) ShouldRateLimit(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	var reqs []api.CheckRequest
	for _, d := range req.Descriptors {
		if req.Domain != "streamcounter" || len(d.Entries) != 1 || d.Entries[0].Key != "key" || d.HitsAddend == nil {
			return nil, status.Errorf(codes.InvalidArgument, "not as agreed: %v", req)
		}
		if d.HitsAddend.Value == 0 {
			return s.look(ctx, d)
		}
		reqs = append(reqs, api.CheckRequest{Key: d.Entries[0].Value, Cost: int64(d.HitsAddend.Value)})
	}
	all, err := s.w.service.CheckAll(ctx, reqs)
	if err != nil {
		return nil, statusOf(err)
	}
	return s.answer(ctx, all), nil
}

func (s *rlsServer) look(ctx context.Context, d *common.RateLimitDescriptor) (*rls.RateLimitResponse, error) {
	k, err := s.w.service.Peek(ctx, d.Entries[0].Value)
	if is(err, api.ErrNoRule) {
		return s.answer(ctx, api.ChecksAnswer{Allowed: true, Checks: []api.CheckAnswer{{Allowed: true, Key: d.Entries[0].Value}}}), nil
	}
	if err != nil {
		return nil, statusOf(err)
	}
	return s.answer(ctx, api.ChecksAnswer{Allowed: true, Checks: []api.CheckAnswer{{Allowed: true, Key: k.Key, Rule: k.Rule, Windows: k.Windows, Source: api.SourceRedis}}}), nil
}

func (s *rlsServer) answer(ctx context.Context, all api.ChecksAnswer) *rls.RateLimitResponse {
	resp := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	if !all.Allowed {
		resp.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	for _, c := range all.Checks {
		st := &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}
		if len(c.Windows) > 0 {
			w := c.Windows[0]
			st.CurrentLimit = &rls.RateLimitResponse_RateLimit{Name: c.Rule, RequestsPerUnit: uint32(w.Limit), Unit: rls.RateLimitResponse_RateLimit_MINUTE}
			st.LimitRemaining, st.DurationUntilReset = uint32(w.Remaining), durationpb.New(time.Duration(w.MoreMs)*time.Millisecond)
		}
		if c.RetryAfterMs > 0 {
			st.Code, st.DurationUntilReset = rls.RateLimitResponse_OVER_LIMIT, durationpb.New(time.Duration(c.RetryAfterMs)*time.Millisecond)
		}
		resp.Statuses = append(resp.Statuses, st)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if s.detail && len(md.Get("streamcounter-detail")) == 1 {
		text, _ := json.Marshal(map[string]any{"streamcounter": all})
		resp.DynamicMetadata = &structpb.Struct{}
		_ = resp.DynamicMetadata.UnmarshalJSON(text)
	}
	return resp
}

func statusOf(err error) error {
	name := nameOf(err)
	code := map[string]codes.Code{"bad-key": codes.InvalidArgument, "bad-count": codes.InvalidArgument, "cost-exceeds-limit": codes.FailedPrecondition, "unavailable": codes.Unavailable}[name]
	st, _ := status.New(code, err.Error()).WithDetails(&errdetails.ErrorInfo{Domain: "streamcounter", Reason: name})
	return st.Err()
}
