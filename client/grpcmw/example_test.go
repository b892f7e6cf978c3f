package grpcmw_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/grpcmw"
)

// full stands in for a client.Client: it denies everybody.
type full struct{}

func (full) Check(_ context.Context, r api.CheckRequest) (api.CheckAnswer, error) {
	return api.CheckAnswer{Rule: "api", Key: r.Key, Cost: r.Cost, RetryAfterMs: 1500, Source: api.SourceRedis}, nil
}

// Each call costs one unit of the key that its metadata names.
func Example() {
	limit, err := grpcmw.New(grpcmw.Config{Checker: full{}, Key: grpcmw.Metadata("x-api-key", "user:")})
	if err != nil {
		log.Fatal(err)
	}
	_ = grpc.NewServer(grpc.UnaryInterceptor(limit.Unary()), grpc.StreamInterceptor(limit.Stream()))

	// The server handles a call like this:
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-api-key", "42"))
	_, err = limit.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/List"},
		func(context.Context, any) (any, error) { return "hello", nil })
	fmt.Println(status.Code(err))
	// Output: ResourceExhausted
}
