package lua_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/lua"
)

// One check of one key with only this package. With rules, use package windows.
func ExampleCaller_Check() {
	server, err := miniredis.Run() // in place of a real Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	// At most 5 in a minute; the level "throttled" (100 %) begins at 5.
	plan := &lua.Plan{
		Meters: []lua.Meter{{Algorithm: "sliding-log", SpanMs: 60_000, Windows: []int{1}}},
		Rules: []lua.Rule{{Name: "api", Algorithm: "sliding-log", HoldMs: 1000,
			Windows: []lua.Window{{Ms: 60_000, Limit: 5, Steps: []int64{100, 5}}}}}}
	args := lua.CheckArgs{
		Partitions: []lua.CheckPartition{{Levels: "sc:{0}:levels", Due: "sc:{0}:due", Outbox: "sc:{0}:outbox"}},
		Plans:      []*lua.Plan{plan},
		Keys:       []lua.CheckKey{{Meters: []string{"sc:{0}:log:user:42"}}},
		Calls:      [][]lua.CheckItem{{{Key: 0, Cost: 4}}, {{Key: 0, Cost: 2}}},
	}
	reply, err := lua.NewCaller(client).Check(context.Background(), args)
	if err != nil {
		log.Fatal(err)
	}
	for _, call := range reply.Calls {
		fmt.Println(call.Allowed, call.Items[0].Windows[0].Used)
	}
	// Output:
	// true 4
	// false 4
}
