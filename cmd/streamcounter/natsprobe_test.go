package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// If --nats is another kind of server, the error says which server answered, and not that NATS is down.
func TestNATSThatIsNone(t *testing.T) {
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	redis := streamtest.EmbeddedRedis(t).Addr()
	rules := testkit.WriteFile(t, "rules.yml", leastRules(10))
	for addr, want := range map[string]string{
		redis:                                  "a Redis server answers",
		strings.TrimPrefix(web.URL, "http://"): "an HTTP server answers",
	} {
		for _, args := range [][]string{
			{"work", "--redis", "redis://" + redis, "--rules", rules, "--http", "127.0.0.1:0"},
			{"watch"},
		} {
			t.Run(args[0]+", "+want, func(t *testing.T) {
				t.Parallel() // each waits for NATS
				code, _, errs := runProgram(t, "", append(args, "--nats", "nats://user:secret@"+addr)...)
				if code == 0 || !strings.Contains(errs, addr+" is not a NATS server: "+want) ||
					!strings.Contains(errs, "--nats") {
					t.Errorf("exit code %d\n%s", code, errs)
				}
			})
		}
	}
}
