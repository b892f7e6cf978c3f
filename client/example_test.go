package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

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

// At most so many jobs at once over all machines, by a rule with a window as {limit: 20, in_flight: 30s}.
func ExampleClient_Acquire() {
	server := httptest.NewServer(oneSlot()) // of a server at work, its URL
	defer server.Close()
	transport, err := client.NewHTTP(server.URL, client.HTTPConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	c, err := client.New(transport, client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	slot, err := c.Acquire(ctx, "job:render", 1)
	var over *client.OverLimitError
	switch {
	case errors.As(err, &over):
		fmt.Println("all are taken, try again within", over.Answer.RetryAfterMs, "ms")
		return
	case err != nil:
		log.Fatal(err)
	}
	defer func() {
		if err := slot.Release(context.WithoutCancel(ctx)); err != nil {
			log.Print(err) // the slot is free when its time is over
		}
	}()
	if _, err := c.Acquire(ctx, "job:render", 1); errors.Is(err, client.ErrOverLimit) {
		fmt.Println("meanwhile:", err)
	}
	if err := render(slot.Context()); err != nil && errors.Is(context.Cause(slot.Context()), client.ErrSlotLost) {
		fmt.Println("stopped: somebody else may have the slot now")
	}
	// Output:
	// meanwhile: over the limit of rule "job": the first slot expires in 30000 ms
	// rendered
}

// render is the work; it ends early when its context does.
func render(ctx context.Context) error {
	fmt.Println("rendered")
	return ctx.Err()
}

// oneSlot answers as a server whose rule "job" has {limit: 1, in_flight: 30s}.
func oneSlot() http.Handler {
	var taken atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/reservations", func(w http.ResponseWriter, _ *http.Request) {
		if taken.Swap(true) {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"type":"urn:streamcounter:over-limit","checks":[{"rule":"job","retry_after_ms":30000}]}`)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id":"0a-1","ttl_ms":30000,"allowed":true,"checks":[{"rule":"job","allowed":true}]}`)
	})
	mux.HandleFunc("POST /v1/reservations/0a-1/commit", func(w http.ResponseWriter, _ *http.Request) {
		taken.Store(false)
		fmt.Fprint(w, `{"id":"0a-1","state":"committed"}`)
	})
	return mux
}
