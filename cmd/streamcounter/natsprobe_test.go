package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// If --nats is another kind of server, the error says which server answered, and not that NATS is down.
func TestNATSThatIsNone(t *testing.T) {
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	redis := streamtest.EmbeddedRedis(t).Addr()
	work := "work --http 127.0.0.1:0 --redis redis://" + redis + " --rules " + devRules(t)
	for addr, want := range map[string]string{
		redis:                                  "a Redis server answers",
		strings.TrimPrefix(web.URL, "http://"): "an HTTP server answers",
	} {
		for _, line := range []string{work, "watch"} {
			t.Run(strings.Fields(line)[0]+", "+want, func(t *testing.T) {
				t.Parallel() // each waits for NATS
				expect(t, line+" --nats nats://user:secret@"+addr, failure, "--nats",
					addr+" is not a NATS server: "+want)
			})
		}
	}
}
