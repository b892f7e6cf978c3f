package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/httpmw"
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

// A net/http service that asks its guard first, and then the server.
func ExampleGuard() {
	nc, err := nats.Connect("nats://127.0.0.1:14222", nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	guard, err := client.NewGuard(nc, client.GuardConfig{})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Println(guard.Run(context.Background())) }()
	limit, err := httpmw.New(httpmw.Config{Guard: guard, Key: httpmw.Header("X-Api-Key", "user:")})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:9090", limit(http.NotFoundHandler())))
}
