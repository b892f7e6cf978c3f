package grpcmw_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/grpcmw"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

type guard map[string]api.Transition

func (g guard) Lookup(key string) (api.Transition, bool) { d, ok := g[key]; return d, ok }

type checker struct {
	asked  []api.CheckRequest
	answer api.CheckAnswer
	err    error
}

func (c *checker) Check(_ context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.asked = append(c.asked, req)
	return c.answer, c.err
}

// serve runs a real server behind the interceptors. Its service is that of health
// checks, as a call and as a stream, which is not skipped unless the test says so.
func serve(t *testing.T, c grpcmw.Config) healthpb.HealthClient {
	t.Helper()
	if c.Key == nil {
		c.Key = grpcmw.Metadata("x-key", "user:")
	}
	limit, err := grpcmw.New(c)
	testkit.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	s := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary()), grpc.StreamInterceptor(limit.Stream()))
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(
		insecure.NewCredentials()))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-served })
	return healthpb.NewHealthClient(conn)
}

// call makes one call and returns its status and its metadata.
func call(t *testing.T, h healthpb.HealthClient, stream bool, key string) (*status.Status, metadata.MD) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-key", key)
	}
	var md metadata.MD
	if !stream {
		_, err := h.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&md))
		return status.Convert(err), md
	}
	w, err := h.Watch(ctx, &healthpb.HealthCheckRequest{})
	testkit.Must(t, err)
	_, err = w.Recv()
	md, _ = w.Header()
	return status.Convert(err), md
}

func onBoth(t *testing.T, test func(t *testing.T, stream bool)) {
	t.Run("unary", func(t *testing.T) { test(t, false) })
	t.Run("stream", func(t *testing.T) { test(t, true) })
}

func detail[T any](s *status.Status) (found T) {
	for _, d := range s.Details() {
		if d, ok := d.(T); ok {
			found = d
		}
	}
	return found
}

func TestAdmitted(t *testing.T) {
	onBoth(t, func(t *testing.T, stream bool) {
		c := &checker{answer: api.CheckAnswer{Allowed: true, Rule: "api",
			Windows: []api.WindowState{{Limit: 10, WindowMs: 60_000, Used: 4, Remaining: 6, NextFreeMs: 20_500}}}}
		var costOf any = "not asked"
		h := serve(t, grpcmw.Config{Checker: c, Skip: []string{}, Cost: func(_ context.Context, method string,
			req any) int64 {
			if costOf = req; !strings.HasPrefix(method, "/grpc.health.v1.Health/") {
				t.Errorf("method %s", method)
			}
			return 3
		}})
		s, md := call(t, h, stream, "1")
		if s.Code() != codes.OK || len(c.asked) != 1 || c.asked[0].Key != "user:1" || c.asked[0].Cost != 3 ||
			(costOf == nil) != stream {
			t.Errorf("%v, asked %+v, cost of %v", s, c.asked, costOf)
		}
		if got := fmt.Sprint(md.Get("ratelimit"), md.Get("ratelimit-policy"), md.Get("x-ratelimit-remaining"),
			md.Get("retry-after")); got != `["api-1m";r=6;t=21] ["api-1m";q=10;w=60] [6] []` {
			t.Errorf("metadata %s", got)
		}
	})
}

// The guard denies as the checker does. The tests of httpmw prove the decisions of package gate, and their order.
func TestDenied(t *testing.T) {
	onBoth(t, func(t *testing.T, stream bool) {
		const now = 1_700_000_000_000
		c := &checker{answer: api.CheckAnswer{Allowed: true}}
		s, md := call(t, serve(t, grpcmw.Config{Checker: c, Skip: []string{}, Now: func() int64 { return now },
			Guard: guard{"user:secret": {Rule: "api", Key: "user:secret", Limit: 10, WindowMs: 60_000, Used: 10,
				UntilMs: now + 1500}}}), stream, "secret")
		if s.Code() != codes.ResourceExhausted || strings.Contains(s.Message(), "secret") || len(c.asked) != 0 {
			t.Errorf("%v, asked %v", s, c.asked)
		}
		if d := detail[*errdetails.RetryInfo](s); d.GetRetryDelay().AsDuration() != 1500*time.Millisecond {
			t.Errorf("RetryInfo %v, want 1.5 s", d)
		}
		if d := detail[*errdetails.ErrorInfo](s); d.GetReason() != "over-limit" || d.GetDomain() != "streamcounter" {
			t.Errorf("ErrorInfo %v", d)
		}
		if got := fmt.Sprint(md.Get("retry-after"), md.Get("ratelimit")); got != `[2] ["api-1m";r=0;t=2]` {
			t.Errorf("metadata %s", got)
		}
	})
}

// A call that is skipped passes, and one without a key, unless a key is required.
func TestSkipped(t *testing.T) {
	onBoth(t, func(t *testing.T, stream bool) {
		for _, c := range []struct {
			skip     []string
			key      string
			required bool
			want     codes.Code
		}{
			{nil, "1", false, codes.OK}, {[]string{}, "1", false, codes.ResourceExhausted},
			{[]string{}, "", false, codes.OK}, {[]string{}, "", true, codes.InvalidArgument},
			{[]string{"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}, "1", false, codes.OK},
			{[]string{"/grpc.health.v1.Health/Che"}, "1", false, codes.ResourceExhausted},
		} {
			h := serve(t, grpcmw.Config{Checker: &checker{}, Skip: c.skip, RequireKey: c.required})
			if s, _ := call(t, h, stream, c.key); s.Code() != c.want {
				t.Errorf("%+v: %v", c, s)
			}
		}
	})
}

func TestErrors(t *testing.T) {
	onBoth(t, func(t *testing.T, stream bool) {
		for _, c := range []struct {
			answer api.CheckAnswer
			err    error
			want   codes.Code
			reason string
		}{
			{api.CheckAnswer{Source: api.SourcePolicy}, api.ErrUnavailable, codes.Unavailable, "unavailable"},
			{api.CheckAnswer{}, api.ErrBadKey, codes.InvalidArgument, "bad-key"},
			{api.CheckAnswer{}, api.ErrBadCount, codes.InvalidArgument, "bad-count"},
			{api.CheckAnswer{}, api.ErrCostExceedsLimit, codes.FailedPrecondition, "cost-exceeds-limit"},
			{api.CheckAnswer{Allowed: true}, api.ErrUnauthenticated, codes.OK, ""},
		} {
			var told error
			h := serve(t, grpcmw.Config{Checker: &checker{answer: c.answer, err: c.err}, Skip: []string{},
				OnError: func(_ context.Context, _ string, err error) { told = err }})
			s, _ := call(t, h, stream, "1")
			if s.Code() != c.want || detail[*errdetails.ErrorInfo](s).GetReason() != c.reason || told != c.err {
				t.Errorf("%v: %v, told %v; want %v %s", c.err, s, told, c.want, c.reason)
			}
		}
	})
}

func TestKeys(t *testing.T) {
	at := func(addr string) context.Context {
		a, err := net.ResolveTCPAddr("tcp", addr)
		testkit.Must(t, err)
		return peer.NewContext(t.Context(), &peer.Peer{Addr: a})
	}
	for _, c := range []struct {
		f    grpcmw.KeyFunc
		ctx  context.Context
		want string
	}{
		{grpcmw.Peer("ip:"), at("192.0.2.1:5"), "ip:192.0.2.1"},
		{grpcmw.Peer("ip:"), at("[2001:db8:1:2:3::4]:5"), "ip:2001:db8:1:2::/64"},
		{grpcmw.Peer("ip:"), peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@"}}), ""},
		{grpcmw.Peer("ip:"), t.Context(), ""},
		{grpcmw.Method("m:"), t.Context(), "m:/a/b"},
		{grpcmw.First(grpcmw.Metadata("x-key", ""), grpcmw.Peer("ip:"), grpcmw.Method("m:")), t.Context(), "m:/a/b"},
		{grpcmw.First(), t.Context(), ""},
	} {
		if got, ok := c.f(c.ctx, "/a/b"); got != c.want || ok != (c.want != "") {
			t.Errorf("%q, %t, want %q", got, ok, c.want)
		}
	}
	twice := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-key", "7", "x-key", "8"))
	if got, ok := grpcmw.Metadata("x-key", "user:")(twice, "/a/b"); got != "" || !ok {
		t.Errorf("an entry that is given twice: %q, %t, want the empty key, which is refused", got, ok)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []grpcmw.Config{{}, {Key: grpcmw.Method("")}, {Guard: guard{}},
		{Key: grpcmw.Method(""), Guard: guard{}, Skip: []string{"health"}}} {
		if _, err := grpcmw.New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}
