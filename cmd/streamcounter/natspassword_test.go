package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// passwordNATS is a server with JetStream whose password changes at a restart.
type passwordNATS struct {
	t    *testing.T
	dir  string
	port int
	stop func()
}

func (n *passwordNATS) start(password string) {
	n.t.Helper()
	s, stop := streamtest.EmbeddedNATS(n.t, natsserver.Options{Port: n.port, JetStream: true, StoreDir: n.dir,
		Username: "u", Password: password})
	n.port, n.stop = s.Addr().(*net.TCPAddr).Port, stop
}

// NATS refuses every process for a while, with the answers that end a connection of the library for good.
// Each says so meanwhile, and goes on afterwards: decisions and alerts that waited come out.
func TestEveryCommandComesBackToNATS(t *testing.T) {
	t.Parallel()
	server := &passwordNATS{t: t, dir: t.TempDir()}
	server.start("right")
	url := fmt.Sprintf("nats://u:right@127.0.0.1:%d", server.port)
	redis := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	rules := testkit.WriteFile(t, "rules.yml",
		"rules: [{name: api, match: \"*\", windows: [{limit: 10, per: 1h}], alerts: [80%]}]")
	delivered := make(chan struct{}, 100)
	endpoint := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		delivered <- struct{}{}
	}))
	t.Cleanup(endpoint.Close)
	file := testkit.WriteFile(t, "sinks.yml", fmt.Sprintf("sinks:\n  - {name: chat, type: slack, url: %q}\n",
		endpoint.URL))
	work := startProgram(t, "work", "--redis", redis, "--nats", url, "--rules", rules, "--http", "127.0.0.1:0")
	work.until(`"msg":"ready"`)
	serve := startProgram(t, "serve", "--redis", redis, "--nats", url, "--rules", rules, "--http", "127.0.0.1:0")
	sinks := startProgram(t, "sinks", "--sinks", file, "--nats", url, "--http", "127.0.0.1:0")
	watch := startProgram(t, "watch", "--nats", url)
	serve.until(`"msg":"ready"`)
	sinks.until(`"msg":"ready"`)
	spend := func(key string) {
		t.Helper()
		if code, body := request(t, "GET", serve.base()+"/v1/check?key="+key+"&cost=10", ""); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	awaitDelivery := func() {
		t.Helper()
		select {
		case <-delivered:
		case <-time.After(30 * time.Second):
			t.Fatalf("sinks delivers nothing:\n%s", sinks.text())
		}
	}
	// A sink gets what is raised once it has its consumer, which is some ms after it is ready.
	streamtest.Eventually(t, 30*time.Second, "sinks delivers", func() (bool, string) {
		spend(fmt.Sprintf("user:1-%d", time.Now().UnixNano()))
		return len(delivered) > 0, sinks.text()
	})
	watch.until("user:1")

	server.stop()
	server.start("wrong")
	all := map[*process]int{work: 503, serve: 200, sinks: 503, watch: 0}
	for p := range all {
		streamtest.Eventually(t, 30*time.Second, "NATS refuses it four times", func() (bool, string) {
			return strings.Count(p.text(), "authorization violation") >= 4, p.text()
		})
	}
	spend("user:2")
	wantReady := func(p *process, want int, connected string) {
		t.Helper()
		streamtest.Eventually(t, 30*time.Second, "readiness and metric", func() (bool, string) {
			code, _ := request(t, "GET", p.base()+"/readyz", "")
			have := metric(t, p.base(), "streamcounter_nats_connected")
			return code == want && have == connected, fmt.Sprint(code, " ", have)
		})
	}
	for p, want := range all {
		if want != 0 {
			wantReady(p, want, "0")
		}
	}

	server.stop()
	server.start("right")
	watch.until("user:2")
	for len(delivered) > 0 {
		<-delivered
	}
	spend("user:3")
	awaitDelivery()
	watch.until("user:3")
	for p, want := range all {
		if want != 0 {
			wantReady(p, 200, "1")
		}
		if strings.Contains(p.text(), ":right@") {
			t.Errorf("a password is shown:\n%s", p.text())
		}
	}
}
