package grpcmw_test

import (
	"context"
	"errors"
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
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/grpcmw"
	"github.com/streamcounter/streamcounter/internal/gate/gatetest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

type (
	guard   = gatetest.Guard
	checker = gatetest.Checker
)

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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// The tests of httpmw prove the decisions of package gate, and their order.
func TestAdmitted(t *testing.T) {
	onBoth(t, func(t *testing.T, stream bool) {
		c := &checker{Answer: api.CheckAnswer{Allowed: true, Rule: "api",
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
		if s.Code() != codes.OK || len(c.Asked) != 1 || c.Asked[0].Key != "user:1" || c.Asked[0].Cost != 3 ||
			(costOf == nil) != stream {
			t.Errorf("%v, asked %+v, cost of %v", s, c.Asked, costOf)
		}
		if got := fmt.Sprint(md.Get("ratelimit"), md.Get("ratelimit-policy"), md.Get("x-ratelimit-remaining"),
			md.Get("retry-after")); got != `["api-1m";r=6;t=21] ["api-1m";q=10;w=60] [6] []` {
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
			{nil, "1", false, codes.OK}, {[]string{}, "", false, codes.OK},
			{[]string{}, "", true, codes.InvalidArgument},
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

// Each error is reported. The guard denies as the checker does.
func TestStatuses(t *testing.T) {
	const now = 1_700_000_000_000
	g := guard{"user:secret": {Rule: "api", Key: "user:secret", Limit: 10, WindowMs: 60_000, Used: 10,
		UntilMs: now + 1500}}
	onBoth(t, func(t *testing.T, stream bool) {
		for _, c := range []struct {
			key     string
			allowed bool
			err     error
			want    codes.Code
			reason  string
			says    string // the wait, and the headers
		}{
			{"secret", true, nil, codes.ResourceExhausted, "over-limit", `1.5s [2] ["api-1m";r=0;t=2]`},
			{"1", false, nil, codes.ResourceExhausted, "over-limit", "0s [] []"},
			{"1", false, api.ErrUnavailable, codes.Unavailable, "unavailable", "0s [] []"},
			{"1", false, api.ErrBadKey, codes.InvalidArgument, "bad-key", "0s [] []"},
			{"1", false, api.ErrBadCount, codes.InvalidArgument, "bad-count", "0s [] []"},
			{"1", false, api.ErrCostExceedsLimit, codes.FailedPrecondition, "cost-exceeds-limit", "0s [] []"},
			{"1", false, api.ErrNeedsReservation, codes.Internal, "internal", "0s [] []"},
			{"1", true, api.ErrUnauthenticated, codes.OK, "", "0s [] []"},
		} {
			var told error
			h := serve(t, grpcmw.Config{Guard: g, Skip: []string{}, Now: func() int64 { return now },
				Checker: &checker{Answer: api.CheckAnswer{Allowed: c.allowed}, Err: c.err},
				OnError: func(_ context.Context, _ string, err error) { told = err }})
			s, md := call(t, h, stream, c.key)
			says := fmt.Sprint(detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(), md.Get("retry-after"),
				md.Get("ratelimit"))
			if d := detail[*errdetails.ErrorInfo](s); s.Code() != c.want ||
				d.GetReason() != c.reason || told != c.err ||
				(d != nil) != (c.want != codes.OK) || d != nil && d.GetDomain() != "streamcounter" ||
				says != c.says || strings.Contains(s.Message(), "secret") {
				t.Errorf("%+v: %v, %s, told %v", c, s, says, told)
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

// holding calls a handler through each kind of interceptor, and returns the error of the call.
func holding(t *testing.T, s *gatetest.OneSlot,
	test func(t *testing.T, call func(handler func(context.Context)) error)) {
	limit, err := grpcmw.New(grpcmw.Config{Slots: s.Client(t), Key: func(context.Context, string) (string, bool) {
		return "job:1", true
	}})
	testkit.Must(t, err)
	t.Run("unary", func(t *testing.T) {
		test(t, func(handler func(context.Context)) error {
			_, err := limit.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"},
				func(ctx context.Context, _ any) (any, error) { handler(ctx); return nil, nil })
			return err
		})
	})
	t.Run("stream", func(t *testing.T) {
		test(t, func(handler func(context.Context)) error {
			return limit.Stream()(nil, stream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"},
				func(_ any, s grpc.ServerStream) error { handler(s.Context()); return nil })
		})
	})
}

func TestASlotForEachCall(t *testing.T) {
	s := &gatetest.OneSlot{TTLMs: 60_000}
	holding(t, s, func(t *testing.T, call func(func(context.Context)) error) {
		testkit.Must(t, call(func(context.Context) {
			err := call(func(context.Context) { t.Error("two at once") })
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second one: %v", err)
			}
		}))
		if s.Taken.Load() {
			t.Error("the slot is not free after the call")
		}
		func() {
			defer func() { _ = recover() }()
			_ = call(func(context.Context) { panic("the handler") })
		}()
		if s.Taken.Load() {
			t.Error("the slot is not free after a panic")
		}
		s.Away = true
		defer func() { s.Away = false }()
		if err := call(func(context.Context) { t.Error("reached") }); status.Code(err) != codes.Unavailable {
			t.Errorf("nobody answers: %v", err)
		}
	})
}

func TestALostSlotEndsTheCall(t *testing.T) {
	holding(t, &gatetest.OneSlot{TTLMs: 30}, func(t *testing.T, call func(func(context.Context)) error) {
		testkit.Must(t, call(func(ctx context.Context) {
			if <-ctx.Done(); !errors.Is(context.Cause(ctx), client.ErrSlotLost) {
				t.Errorf("it ended with %v", context.Cause(ctx))
			}
		}))
	})
}

// stream is one that only has a context and takes headers.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context    { return s.ctx }
func (stream) SetHeader(_ metadata.MD) error { return nil }
