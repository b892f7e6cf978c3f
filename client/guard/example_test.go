package guard_test

import (
	"context"
	"log"
	"net/http"

	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/client/httpmw"
)

// A net/http service that asks its guard first, and then the server.
func Example() {
	nc, err := guard.Connect("nats://127.0.0.1:14222")
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	g, err := guard.New(nc, guard.Config{})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Println(g.Run(context.Background())) }()
	limit, err := httpmw.New(httpmw.Config{Guard: g, Key: httpmw.Header("X-Api-Key", "user:")})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:9090", limit(http.NotFoundHandler())))
}
