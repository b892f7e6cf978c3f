// A worker that skips the jobs of throttled keys without a request for each job: the guard receives decisions over
// NATS. With `streamcounter dev` running:
//
//	go run ./examples/guard user:1 user:2
//	curl 'http://127.0.0.1:8080/v1/check?key=user:1&cost=100'
//
// The jobs of user:1 then wait for ten seconds; those of user:2 go on.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
)

func main() {
	natsURL := flag.String("nats", "nats://127.0.0.1:14222", "NATS")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	if err := run(ctx, *natsURL, "sc", flag.Args(), tick.C, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does one job of each key at each tick.
func run(ctx context.Context, natsURL, prefix string, keys []string, tick <-chan time.Time, out io.Writer) error {
	nc, err := guard.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	say := log.New(out, "", 0).Printf
	g, err := guard.New(nc, guard.Config{Prefix: prefix, OnChange: func(c guard.Change) {
		if c.State == api.StateThrottled {
			say("%s is throttled: %d of %d", c.Key, c.Used, c.Limit)
			return
		}
		say("%s is let go (%s)", c.Key, c.Reason)
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	defer cancel()
	for {
		select {
		case err := <-ended: // nil if ctx has ended
			return err
		case <-tick:
			for _, key := range keys {
				if g.Throttled(key) {
					say("job of %s waits", key)
					continue
				}
				say("job of %s done", key)
			}
		}
	}
}
