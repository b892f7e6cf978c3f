package access_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// callStream is a stream with the context of a call.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s callStream) Context() context.Context { return s.ctx }

func TestGRPCCallsWantTheirScope(t *testing.T) {
	tokens := newTokens(t, fourTokens)
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
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(c.metadata...))
		for method, want := range map[string]codes.Code{
			"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit":    c.check,
			healthpb.Health_Check_FullMethodName:                              c.health,
			healthpb.Health_Watch_FullMethodName:                              c.health,
			reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: c.reflection,
		} {
			answered, served := false, false
			_, one := tokens.UnaryInterceptor(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) { answered = true; return nil, nil })
			all := tokens.StreamInterceptor(nil, callStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method},
				func(any, grpc.ServerStream) error { served = true; return nil })
			if status.Code(one) != want || status.Code(all) != want || answered != (want == ok) || served != answered {
				t.Errorf("%s with %s: %v, as a stream %v, want %s", method, c.name, one, all, want)
			}
		}
	}
}
