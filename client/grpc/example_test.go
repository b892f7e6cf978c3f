package grpc_test

import (
	"context"
	"fmt"
	"log"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/grpc"
)

// A check over gRPC, allowed if nobody answers in time.
func Example() {
	transport, err := grpc.New("127.0.0.1:8082", grpc.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	checker, err := client.New(transport, client.Config{Policy: client.Allow})
	if err != nil {
		log.Fatal(err)
	}
	a, err := checker.Check(context.Background(), api.CheckRequest{Key: "user:42"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", a.Allowed, "by", a.Source)
}
