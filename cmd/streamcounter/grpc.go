package main

import (
	"context"
	"errors"
	"net"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/streamcounter/streamcounter/check"
)

// grpcServer is Envoy's rate limit service at --grpc, with health and reflection.
type grpcServer struct {
	*grpc.Server
	health   *health.Server
	listener net.Listener
}

// listenGRPC opens the gRPC address, so that a taken port ends the start.
func (n *node) listenGRPC() error {
	if n.cmd.Flags().Lookup("grpc") == nil || n.text("grpc") == "" {
		return nil
	}
	l, err := n.listen("grpc")
	if err != nil {
		return err
	}
	n.atStop(func() { _ = l.Close() }) // it is closed already where the server has run
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(check.Codec{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(256 << 10), grpc.MaxConcurrentStreams(10_000), grpc.ConnectionTimeout(5 * time.Second),
		// Handlers wait for Redis, several of a run each: a goroutine that has served
		// a call before need not grow its stack again.
		grpc.NumStreamWorkers(128),
	}
	if n.tokens != nil {
		options = append(options, grpc.UnaryInterceptor(n.tokens.UnaryInterceptor), grpc.StreamInterceptor(n.tokens.StreamInterceptor))
	}
	if n.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(n.tls)))
	}
	s := grpc.NewServer(options...)
	n.grpc = &grpcServer{Server: s, health: health.NewServer(), listener: l}
	healthv1.RegisterHealthServer(s, n.grpc.health)
	reflection.Register(s)
	return nil
}

// addRateLimits serves checks over gRPC.
func (n *node) addRateLimits(service *check.Service) {
	if n.grpc == nil {
		return
	}
	rlsv3.RegisterRateLimitServiceServer(n.grpc, check.NewRateLimits(service, check.RateLimitsConfig{Find: n.findLimit, Headers: n.flag("rls-headers")}))
	n.grpc.health.SetServingStatus(rlsv3.RateLimitService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
}

// addr is where it listens, empty where it does not.
func (g *grpcServer) addr() string {
	if g == nil {
		return ""
	}
	return g.listener.Addr().String()
}

// serve runs until shutdown.
func (g *grpcServer) serve() error {
	if err := g.Serve(g.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// shutdown takes no more calls, lets those under way end, and cuts off what has
// not ended when ctx does.
func (g *grpcServer) shutdown(ctx context.Context) {
	g.health.Shutdown()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.GracefulStop()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		g.Stop()
		<-ended
	}
}
