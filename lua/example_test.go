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
func ExampleCaller_Call() {
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
	plans, keys := []*lua.Plan{plan}, []string{"sc:{0}:levels", "sc:{0}:due", "sc:{0}:outbox", "sc:{0}:log:user:42"}
	for _, cost := range []int{4, 2} {
		r := lua.NewCaller(client).Call(context.Background(), "check", plans, keys, "", 1+16384, plan.Text(), cost)
		_, allowed, state := r.Integer(), r.Integer() == 1, r.AnswerWithShadows(plan)
		if err := r.End(); err != nil {
			log.Fatal(err)
		}
		fmt.Println(allowed, state.Windows[0].Used)
	}
	// Output:
	// true 4
	// false 4
}
