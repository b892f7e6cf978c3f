package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
)

// A check over HTTP that continues with a third of each limit while the server is away.
func ExampleDial() {
	checker, err := client.Dial("http://127.0.0.1:8080", client.Config{Policy: client.Local, Instances: 3})
	if err != nil {
		log.Fatal(err)
	}
	defer checker.Close()
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

// A worker calls a partner that has a limit. It waits up to a minute for each call instead of being denied.
func ExampleClient_Wait() {
	c, err := client.Dial("http://127.0.0.1:8080", client.Config{MaxWait: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := c.Wait(context.Background(), "partner:maps", 1); err != nil {
		log.Fatal(err) // errors.Is(err, client.ErrOverLimit): the wait would have been longer
	}
	fmt.Println("sent")
}

// A bound on the jobs at the same time on all machines, by a rule with a window such as {limit: 20, in_flight: 30s}.
func ExampleClient_Acquire() {
	c, err := client.Dial("http://127.0.0.1:8080", client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
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
	if err := render(slot.Context()); err != nil && errors.Is(context.Cause(slot.Context()), client.ErrSlotLost) {
		fmt.Println("stopped: somebody else may have the slot now")
	}
}

// render is the work; it ends early when its context does.
func render(ctx context.Context) error { return ctx.Err() }
