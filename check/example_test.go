package check_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// All keys are charged, or none: what a transport does between decoding and encoding.
func ExampleService_CheckAll() {
	server, err := miniredis.Run() // stands in for a real Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	keys, err := stream.NewKeys(stream.DefaultPrefix, stream.DefaultPartitions)
	if err != nil {
		log.Fatal(err)
	}
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 3, Per: time.Minute}}}})
	if err != nil {
		log.Fatal(err)
	}
	service, err := check.NewService(check.Config{Counter: counters.New(client, keys),
		Rules: windows.Fixed(rules).Rules, Timeout: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ask := func(reqs ...api.CheckRequest) {
		all, err := service.CheckAll(context.Background(), reqs)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(all.Allowed, all.Checks[0].Windows[0].Used, all.Checks[1].Windows[0].Used)
	}
	ask(api.CheckRequest{Key: "user:1"}, api.CheckRequest{Key: "user:2", Cost: 3})
	ask(api.CheckRequest{Key: "user:1"}, api.CheckRequest{Key: "user:2"})
	// Output:
	// true 1 3
	// false 1 3
}
