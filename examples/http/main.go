// A net/http service behind the middleware. Callers with an X-Api-Key are limited
// by it, others by their address. With `streamcounter dev` running:
//
//	go run ./examples/http
//	for i in $(seq 120); do
//		curl -s -o /dev/null -w '%{http_code}\n' -H 'X-Api-Key: 42' http://127.0.0.1:9090/
//	done | sort | uniq -c
//
// 100 requests are served, as the rule for user:* allows, and 20 are answered with the time to try again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/client/httpmw"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9090", "where to listen")
	server := flag.String("server", "http://127.0.0.1:8080", "streamcounter's HTTP address")
	natsURL := flag.String("nats", "nats://127.0.0.1:14222", "NATS, for the guard")
	instances := flag.Int("instances", 1, "how many processes of this service share the limits")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ready := func(addr net.Addr) { fmt.Printf("http://%s/\n", addr) }
	if err := run(ctx, *listen, *server, *natsURL, *instances, ready); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, server, natsURL string, instances int, ready func(net.Addr)) error {
	// If streamcounter does not answer, this process goes on alone with its share of each limit.
	limiter, err := client.Dial(server, client.Config{Policy: client.Local, Instances: instances,
		OnFallback: func(p client.Policy, why error) {
			slog.Warn("streamcounter did not answer", "policy", p, "error", why)
		}})
	if err != nil {
		return err
	}
	defer limiter.Close()
	nc, err := guard.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	g, err := guard.New(nc, guard.Config{})
	if err != nil {
		return err
	}
	limit, err := httpmw.New(httpmw.Config{
		Guard:   g,
		Checker: limiter,
		Key:     httpmw.First(httpmw.Header("X-Api-Key", "user:"), httpmw.ClientAddress("ip:")),
		Skip:    []func(*http.Request) bool{httpmw.Paths("/healthz")},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })

	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &http.Server{Handler: limit(mux), ReadHeaderTimeout: 5 * time.Second}
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() {
		defer cancel()
		if err := g.Run(ctx); err != nil {
			slog.Error("guard", "error", err)
		}
	})
	parts.Go(func() {
		<-ctx.Done()
		within, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		_ = s.Shutdown(within)
	})
	ready(l.Addr())
	err = s.Serve(l)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
