package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// Anybody can fail a handshake as often as he likes: the log has each kind once. It has every panic.
func TestFailedHandshakesAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	s := httpServerOf(&node{log: slog.New(slog.NewTextHandler(&log, nil))}, httpapi.NewRouter(nil), nil).(httpServer)
	ours := streamtest.NewAuthority(t)
	server := httptest.NewUnstartedServer(s.Handler)
	server.Config, server.TLS = s.Server, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: ours.Config(ours.Issue("server")).Certificates}
	server.StartTLS()
	defer server.Close()
	for range 3 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		testkit.Must(t, err)
		_, err = fmt.Fprint(c, "\x00no handshake")
		testkit.Must(t, err)
		_, _ = io.ReadAll(c) // the server closes it after the line of the log
		c.Close()
		if _, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{MaxVersion: tls.VersionTLS12,
			InsecureSkipVerify: true}); err == nil {
			t.Error("an old version was taken")
		}
	}
	server.Close() // it waits for the last lines
	for _, at := range []string{"1.2.3.4:5", "[fe80::abc]:8"} {
		for _, line := range []string{
			"http: TLS handshake error from %[1]s: read tcp 127.0.0.1:80->%[1]s: read: connection reset by peer",
			"http: TLS handshake error from %s: tls: failed to verify certificate: x509: certificate has expired or " +
				"is not yet valid: current time 2026-01-01T00:00:01Z is after 2025-01-01T00:00:00Z",
			"http: TLS handshake error from %s: tls: client offered only unsupported versions: [fa]",
			"http: panic serving %s: runtime error: index out of range",
			"http2: panic serving %s: runtime error: index out of range",
		} {
			s.ErrorLog.Printf(line, at)
		}
	}
	for says, want := range map[string]int{"look like a TLS": 1, "unsupported versions": 1, "connection reset": 1,
		"expired": 1, "panic": 4} {
		if got := strings.Count(log.String(), says); got != want {
			t.Errorf("%d lines with %q, want %d:\n%s", got, says, want, &log)
		}
	}
}

// The log says whether Redis refuses or does not answer, and a metric that it does not answer as it should.
func TestNotReadyBecauseRedisRefuses(t *testing.T) {
	var log bytes.Buffer
	server, reg := streamtest.EmbeddedRedis(t), prometheus.NewRegistry()
	n := &node{log: slog.New(slog.NewTextHandler(&log, nil)), redis: streamtest.Connect(t, server.Addr()),
		registry: reg}
	n.redisMetrics()
	wantConnected(t, reg, 1)
	server.SetError("MISCONF Errors writing to the AOF file")
	want := `msg="not ready: Redis refuses it: MISCONF" error="MISCONF Errors writing to the AOF file"`
	if err := n.ready(t.Context()); err == nil || !strings.Contains(log.String(), want) {
		t.Errorf("%v, %s", err, &log)
	}
	wantConnected(t, reg, 0)
}

// The metric shows that one master of a Cluster is away, although the process is ready.
func TestAMasterThatIsAwayIsInAMetric(t *testing.T) {
	addr := streamtest.EmbeddedRedis(t).Addr()
	for other, want := range map[string]int{addr: 1, "127.0.0.1:1": 0} {
		c := stream.NewCluster(&redis.ClusterOptions{Addrs: []string{addr}, DialerRetries: 1,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addr}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: other}}}}, nil
			}})
		t.Cleanup(func() { _ = c.Close() })
		n := &node{redis: c, registry: prometheus.NewRegistry()}
		n.redisMetrics()
		wantConnected(t, n.registry, want)
	}
}

func wantConnected(t *testing.T, reg *prometheus.Registry, want int) {
	t.Helper()
	text := fmt.Sprintf("# HELP streamcounter_redis_connected 1 while Redis answers this process, on a Cluster all "+
		"masters, else 0.\n# TYPE streamcounter_redis_connected gauge\nstreamcounter_redis_connected %d\n", want)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(text)); err != nil {
		t.Error(err)
	}
}

// A page of another site cannot charge a limit of `ratelimit`, which has no tokens.
func TestForeignPagesCannotUseRateLimitsJSON(t *testing.T) {
	server := newRatelimitHTTP(&node{log: slog.New(slog.DiscardHandler)}).(httpServer)
	r := httptest.NewRequest("POST", "/json", strings.NewReader("{"))
	r.Header.Set("Content-Type", "text/plain")
	r.Header.Set("Origin", "https://evil.example")
	w := httptest.NewRecorder()
	if server.Handler.ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
