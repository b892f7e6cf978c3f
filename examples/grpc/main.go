// A gRPC service behind the interceptors. Its callers are limited by their x-api-key, or by their address if they
// have none. It calls streamcounter over HTTP; client.New around client/grpc does so over gRPC. With `streamcounter
// dev` running:
//
//	go run ./examples/grpc
//	grpcurl -plaintext -H 'x-api-key: 42' 127.0.0.1:9091 grpc.health.v1.Health/Check
//
// The 101st call within 10 s ends with ResourceExhausted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/grpcmw"
)

// grace is how long calls may take to end when the service stops.
const grace = time.Second

func main() {
	listen := flag.String("listen", "127.0.0.1:9091", "where to listen")
	server := flag.String("server", "http://127.0.0.1:8080", "streamcounter's HTTP address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *server, func(addr net.Addr) { fmt.Println(addr) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, server string, ready func(net.Addr)) error {
	limiter, err := client.Dial(server, client.Config{Policy: client.Allow})
	if err != nil {
		return err
	}
	defer limiter.Close()
	limit, err := grpcmw.New(grpcmw.Config{
		Checker: limiter,
		Key:     grpcmw.First(grpcmw.Metadata("x-api-key", "user:"), grpcmw.Peer("ip:")),
		// By default health checks are not limited. Here they are the service.
		Skip: []string{"/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"},
		OnError: func(_ context.Context, method string, err error) {
			slog.Warn("limiting", "method", method, "error", err)
		},
	})
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary()), grpc.StreamInterceptor(limit.Stream()))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	var stopping sync.WaitGroup
	defer stopping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopping.Go(func() {
		<-ctx.Done()
		force := time.AfterFunc(grace, s.Stop) // only its caller ends a health Watch
		defer force.Stop()
		s.GracefulStop()
	})
	ready(l.Addr())
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // it was stopped, maybe before it served
}
