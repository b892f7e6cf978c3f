package direct_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/windows"
)

// A service that checks in Redis itself, and allows if Redis does not answer.
func Example() {
	connection := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", MaxRetries: -1, ContextTimeoutEnabled: true})
	defer connection.Close()
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 3, Per: time.Minute}}}}) // or windows.NewSource of the servers' file
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	transport, err := direct.NewRedis(ctx, connection, direct.Config{Rules: windows.Fixed(rules).Rules})
	if err != nil {
		log.Fatal(err)
	}
	checker, err := client.New(transport, client.Config{Policy: client.Allow, Timeout: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	a, err := checker.Check(ctx, api.CheckRequest{Key: "user:42", Cost: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", a.Allowed, "by", a.Source)
}
