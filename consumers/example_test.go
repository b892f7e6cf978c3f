package consumers_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// printer publishes to the terminal; alerts.Publisher does to NATS.
type printer struct{ published func() }

func (p printer) Publish(_ context.Context, list []api.Transition, _ int) error {
	for _, t := range list {
		fmt.Println(t.State, t.Key, "at", t.Used, "of", t.Limit)
	}
	p.published()
	return nil
}

// A worker inside your own process: it counts an event and publishes the resulting decision.
func ExamplePool() {
	server, err := miniredis.Run() // in place of a real Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	connect := func() *redis.Client {
		return redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	}
	client, blocking := connect(), connect()
	defer client.Close()
	defer blocking.Close()
	keys, err := stream.NewKeys(stream.DefaultPrefix, stream.DefaultPartitions)
	if err != nil {
		log.Fatal(err)
	}
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 3, Per: time.Minute}}}})
	if err != nil {
		log.Fatal(err)
	}
	events, err := stream.NewLog(client, keys, stream.DefaultRetention)
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	pool, err := consumers.NewPool(consumers.Config{Redis: client, Blocking: blocking, Keys: keys,
		Counter: counters.New(client, keys), Rules: windows.Fixed(rules).Rules, Publisher: printer{stop},
		Metrics: consumers.NewMetrics(prometheus.NewRegistry()), Block: 50 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	if out := events.Append(ctx, []api.Event{{Key: "user:42", Count: 3}}); out.Err != nil {
		log.Fatal(out.Err)
	}
	pool.Run(ctx) // until the decision is published
	// Output:
	// raised user:42 at 3 of 3
	// throttled user:42 at 3 of 3
}
