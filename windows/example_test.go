package windows_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// A check without a server in between: rules, a Redis, and a verdict. Services want
// package client/direct, which adds deadlines, batching and a breaker to this.
func Example() {
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
	rules, err := windows.Parse("rules.yml", []byte(`
rules:
  - name: api
    match: "user:*"
    windows: [{limit: 3, per: 1m}]
`))
	if err != nil {
		log.Fatal(err) // with file, line and column
	}
	counter := windows.NewRedis(client, keys)
	for range 2 {
		v, err := counter.Check(context.Background(), []windows.Request{
			{Plan: rules.Match("user:42"), Key: "user:42", Cost: 2}})
		if err != nil {
			log.Fatal(err) // it may have been charged: ask again only if charging twice does no harm
		}
		w := v.Items[0].Windows[0]
		fmt.Printf("allowed %t, %d of %d used\n", v.Allowed, w.Used, w.Limit)
	}
	// Output:
	// allowed true, 2 of 3 used
	// allowed false, 2 of 3 used
}
