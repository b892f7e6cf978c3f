package access_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// shouldRateLimit is the method of Envoy's service, answered by a stand-in.
const shouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

var standIn = grpc.ServiceDesc{
	ServiceName: "envoy.service.ratelimit.v3.RateLimitService", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: func(_ any, ctx context.Context,
		decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := &emptypb.Empty{}
		if err := decode(in); err != nil {
			return nil, err
		}
		answer := func(context.Context, any) (any, error) { return &emptypb.Empty{}, nil }
		return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: shouldRateLimit}, answer)
	}}},
}

func TestGRPCCallsWantTheirScope(t *testing.T) {
	tokens := newTokens(t, fourTokens)
	server := grpc.NewServer(grpc.UnaryInterceptor(tokens.UnaryInterceptor),
		grpc.StreamInterceptor(tokens.StreamInterceptor))
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	server.RegisterService(&standIn, struct{}{})
	l := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	conn, err := grpc.NewClient("passthrough:///here", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	calls := map[string]func(context.Context) error{
		"check": func(ctx context.Context) error {
			return conn.Invoke(ctx, shouldRateLimit, &emptypb.Empty{}, &emptypb.Empty{})
		},
		"health": func(ctx context.Context) error {
			_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			return err
		},
		"health's stream": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			if err == nil {
				_, err = watch.Recv()
			}
			return err
		},
		"reflection": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			list, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			// The error comes with the answer: the stream may have ended before this.
			_ = list.Send(
				&reflectionpb.ServerReflectionRequest{
					MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			_, err = list.Recv()
			return err
		},
	}
	const ok, who, not = codes.OK, codes.Unauthenticated, codes.PermissionDenied
	for _, c := range []struct {
		name                      string
		metadata                  []string
		check, health, reflection codes.Code
	}{
		{"no token", nil, who, ok, who},
		{"a stranger's", []string{"authorization", "Bearer stranger-0123456789"}, who, ok, who},
		{"another scheme", []string{"authorization", "Basic " + operator}, who, ok, who},
		{"check", []string{"authorization", "Bearer " + checker}, ok, ok, not},
		{"check in our own header", []string{"x-streamcounter-token", checker, "authorization",
			"Bearer of-the-application"}, ok, ok, not},
		{"check behind empty headers", []string{"x-streamcounter-token", "", "authorization", "", "authorization",
			"Bearer " + checker}, ok, ok, not},
		{"append", []string{"authorization", "Bearer " + appender}, not, ok, not},
		{"read", []string{"authorization", "Bearer " + reader}, not, ok, ok},
		{"admin", []string{"authorization", "Bearer " + operator}, ok, ok, ok},
	} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(c.metadata...))
		for call, want := range map[string]codes.Code{"check": c.check, "health": c.health,
			"health's stream": c.health, "reflection": c.reflection} {
			if err := calls[call](ctx); status.Code(err) != want {
				t.Errorf("%s with %s: %v, want %s", call, c.name, err, want)
			}
		}
	}
}
