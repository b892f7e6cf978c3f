package alerts_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
)

// A throttle decision on its way to a subscriber.
func ExamplePublisher() {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir,
		NoSigs: true})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		log.Fatal("NATS does not start")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	heard, err := nc.SubscribeSync("sc.throttle.>")
	if err != nil {
		log.Fatal(err)
	}

	publisher, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: "sc"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := publisher.Ensure(ctx); err != nil { // makes the streams; the first Publish would too
		log.Fatal(err)
	}
	now := time.Now().UnixMilli()
	err = publisher.Publish(ctx, []api.Transition{{Rule: "api", Key: "user:42",
		State: api.StateThrottled, Level: api.LevelThrottled, Limit: 100, WindowMs: 60_000, Used: 100, Version: 1,
		AtMs: now, SinceMs: now, UntilMs: now + 60_000, ExpiresMs: now + 66_000}}, 0)
	if err != nil {
		log.Fatal(err) // the context ended before the PubAck
	}
	m, err := heard.NextMsg(10 * time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Subject, m.Header.Get("ce-type"))
	// Output: sc.throttle.api.user:42 io.streamcounter.throttle.throttled
}
