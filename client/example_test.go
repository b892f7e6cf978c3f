package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
)

// A check over HTTP that goes on with a third of each limit while the server is away.
func ExampleClient() {
	transport, err := client.NewHTTP("http://127.0.0.1:8080", client.HTTPConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	checker, err := client.New(transport, client.Config{Policy: client.Local, Instances: 3})
	if err != nil {
		log.Fatal(err)
	}
	a, err := checker.Check(context.Background(), api.CheckRequest{Key: "user:42", Cost: 2})
	switch {
	case errors.Is(err, api.ErrCostExceedsLimit):
		fmt.Println("never:", err)
	case err != nil:
		log.Fatal(err)
	case !a.Allowed:
		fmt.Println("again in", a.RetryAfterMs, "ms")
	default:
		fmt.Println("served, decided by", a.Source)
	}
}
