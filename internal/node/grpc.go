package node

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/streamcounter/streamcounter/check/envoy"
)

// grpcServer is Envoy's rate limit service at --grpc, with health and reflection.
type grpcServer struct {
	*grpc.Server
	health *health.Server
}

// Bounds on what a caller without a token can use; docs/security.md says what it costs.
const (
	// callTime bounds a call, including the arrival of its request: grpc-go reads the request before any interceptor
	// runs, and waits for it without a limit.
	callTime = 10 * time.Second
	// maxMetadata bounds the metadata of a call, in bytes, like the header bound of HTTP. grpc-go's own bound is 16
	// MiB.
	maxMetadata = 32 << 10
	// maxWatches bounds the open health Watch and reflection streams of the process, which last as long as their
	// connections.
	maxWatches = 1000
)

// endCallsInTime sets a deadline for each unary call when its headers arrive, unless its caller set one that is no
// later. It refuses no call: if a call were refused here, grpc-go would keep the timer of the caller's deadline.
func endCallsInTime(ctx context.Context, call *tap.Info) (context.Context, error) {
	if own, ok := ctx.Deadline(); isStream(call.FullMethodName) || ok && time.Until(own) <= callTime {
		return ctx, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	_ = cancel // ctx ends with its parent, which grpc-go cancels at the end of the call
	return ctx, nil
}

func isStream(method string) bool {
	return method == healthv1.Health_Watch_FullMethodName || strings.HasPrefix(method, "/grpc.reflection.")
}

// boundWatches refuses streams beyond maxWatches.
func boundWatches() grpc.StreamServerInterceptor {
	room := semaphore.NewWeighted(maxWatches)
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !room.TryAcquire(1) {
			return status.Errorf(codes.ResourceExhausted, "%d streams are open, which is the maximum", maxWatches)
		}
		defer room.Release(1)
		return handler(srv, ss)
	}
}

func newGRPCServer(n *node) server {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(envoy.Codec{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 10 * time.Second,
			MaxConnectionAge: n.config.GRPC.MaxAge, MaxConnectionAgeGrace: cmp.Or(n.config.GRPC.Grace, callTime),
			MaxConnectionIdle: n.config.GRPC.MaxIdle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(256 << 10),
		grpc.MaxConcurrentStreams(uint32(n.config.GRPC.MaxStreams)), //nolint:gosec // validated
		grpc.MaxHeaderListSize(maxMetadata), grpc.ConnectionTimeout(5 * time.Second),
		grpc.InTapHandle(endCallsInTime), grpc.ChainStreamInterceptor(boundWatches()),
		// Handlers wait for Redis, several of a run each: a goroutine that has served
		// a call before need not grow its stack again.
		grpc.NumStreamWorkers(128),
	}
	options = append(options, n.traceGRPC()...)
	if n.tokens != nil {
		options = append(options,
			grpc.UnaryInterceptor(n.tokens.UnaryInterceptor), grpc.ChainStreamInterceptor(n.tokens.StreamInterceptor))
	}
	if n.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(n.tls)))
	}
	s := grpcServer{Server: grpc.NewServer(options...), health: health.NewServer()}
	rlsv3.RegisterRateLimitServiceServer(s, n.limiter)
	healthv1.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	s.serving(n.noLimits() == nil)
	if x, ok := n.rules.(*xdsRules); ok {
		n.background = append(n.background, func(ctx context.Context) {
			select {
			case <-x.Arrived():
				s.serving(true) // has no effect once Shutdown has begun
			case <-ctx.Done():
			}
		})
	}
	return s
}

// ratelimitService is the name of the service in envoyproxy/ratelimit.
const ratelimitService = "ratelimit"

// serving sets what gRPC health reports for the service, under its own name and under that of envoyproxy/ratelimit.
func (s grpcServer) serving(on bool) {
	is := healthv1.HealthCheckResponse_NOT_SERVING
	if on {
		is = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{rlsv3.RateLimitService_ServiceDesc.ServiceName, ratelimitService} {
		s.health.SetServingStatus(name, is)
	}
}

func (s grpcServer) Serve(l net.Listener) error {
	if err := s.Server.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func (s grpcServer) Shutdown(ctx context.Context) error {
	s.health.Shutdown()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.GracefulStop()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		s.Stop()
		<-ended
		return ctx.Err()
	}
}
