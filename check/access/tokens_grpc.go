package access

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
)

// Services that need no token, or another scope than check. All other services of a server need the scope check.
const (
	healthService     = "/grpc.health.v1.Health/"
	reflectionService = "/grpc.reflection." // v1 and v1alpha
)

// UnaryInterceptor refuses calls that the token in the metadata "authorization" (or "x-streamcounter-token") does not
// allow, with codes.Unauthenticated or codes.PermissionDenied. The health service answers everybody.
func (t *Tokens) UnaryInterceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	if err := t.allowCall(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// StreamInterceptor does the same for streams, when they begin.
func (t *Tokens) StreamInterceptor(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	if err := t.allowCall(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, ss)
}

func (t *Tokens) allowCall(ctx context.Context, method string) error {
	scope := ScopeCheck
	switch {
	case t == nil, strings.HasPrefix(method, healthService):
		return nil
	case strings.HasPrefix(method, reflectionService):
		scope = ScopeRead
	}
	err := t.Allow(bearerOfCall(ctx), scope)
	if err != nil {
		t.first.Log(t.log, method[:strings.LastIndexByte(method, '/')+1], err.Error(), err)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, api.ErrForbidden):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unauthenticated, err.Error())
}

func bearerOfCall(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return bearerIn(md.Get)
}
