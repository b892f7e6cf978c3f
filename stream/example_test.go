package stream_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/stream"
)

// How a Go service appends events. The example has no output to compare. It is
// compiled but not run, because it needs a server.
func ExampleProducer() {
	ctx := context.Background()
	// Without retries: after a lost reply, a second XADD would count twice.
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	keys, err := stream.NewKeys(stream.DefaultPrefix, stream.DefaultPartitions)
	if err != nil {
		panic(err)
	}
	log, err := stream.NewLog(client, keys, stream.DefaultRetention)
	if err != nil {
		panic(err)
	}
	producer, err := stream.NewProducer(log, stream.ProducerConfig{OnFlush: func(out stream.Outcome) {
		if out.Err != nil { // decide whether to send out.Refused or out.Unknown again
			slog.Error("appending", "refused", len(out.Refused), "unknown", len(out.Unknown), "error", out.Err)
		}
	}})
	if err != nil {
		panic(err)
	}

	if err := producer.Append(ctx, api.Event{Key: "user:42", Count: 1}); err != nil {
		slog.Error("not taken", "error", err)
	}

	closing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := producer.Close(closing); err != nil { // sends the queued events
		slog.Error("closing", "error", err)
	}
}
