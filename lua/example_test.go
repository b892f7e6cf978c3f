package lua_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/lua"
)

// One check of one counter by its scripts alone. Who has rules wants package windows.
func ExampleCheck() {
	server, err := miniredis.Run() // stands in for a real Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	// At most 5 in a minute; the level "throttled" (100 %) begins at 5.
	rule := &lua.Rule{Algorithm: "sliding-log", Decides: 1, SpanMs: 60_000,
		Spec:    "api;sliding-log;1000;0|60000,5,100=5",
		Windows: []lua.Window{{Ms: 60_000, Limit: 5, Lowest: 5}}}
	args := lua.CheckArgs{
		Partitions: []lua.CheckPartition{{Levels: "sc:{0}:levels", Due: "sc:{0}:due", Outbox: "sc:{0}:outbox"}},
		Rules:      []*lua.Rule{rule},
		Counters:   []lua.CheckCounter{{Counter: "sc:{0}:log:user:42"}},
		Calls:      [][]lua.CheckItem{{{Counter: 0, Cost: 4}}, {{Counter: 0, Cost: 2}}},
	}
	reply, err := lua.Check(context.Background(), client, args)
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
