package partners

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// gateway is an Envoy Gateway, the rate limit service that it configures, and an Envoy that calls this service.
type gateway struct {
	t         testing.TB
	resources string // directory of its resources
	limiter   *program
	envoy     *envoy
	service   rlsv3.RateLimitServiceClient
}

// startGateway runs Envoy Gateway with resources, and streamcounter with the variables that Envoy Gateway sets in its
// rate limit Deployment.
func startGateway(t *testing.T, resources map[string]string) *gateway {
	t.Helper()
	for _, port := range []string{"8081", "18000", "18001", "18002", "19000", "19001"} {
		l, err := net.Listen("tcp", "0.0.0.0:"+port)
		if err != nil {
			t.Fatalf("Envoy Gateway listens at port %s and has no setting for it: %v", port, err)
		}
		_ = l.Close()
	}
	program := built(t, "envoy-gateway")
	config, err := os.ReadFile("testdata/envoygateway.yaml")
	testkit.Must(t, err)
	dir := t.TempDir()
	// In place of the Envoy that Envoy Gateway would download: the test does its work.
	bin := filepath.Join(dir, "data/envoy-versions/1.39.1/bin")
	testkit.Must(t, os.MkdirAll(bin, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(bin, "envoy"), []byte("#!/bin/sh\nexec sleep infinity\n"), 0o700))
	g := &gateway{t: t, resources: filepath.Join(dir, "resources")}
	testkit.Must(t, os.Mkdir(g.resources, 0o755))
	for name, text := range resources {
		g.apply(name, text)
	}
	<-start(t, nil, program, "certgen", "--local", "--config-home", filepath.Join(dir, "config")).Gone
	certs := filepath.Join(dir, "config", "certs")
	start(t, nil, program, "server", "--config-path", testkit.WriteFile(t, "eg.yaml",
		strings.ReplaceAll(string(config), "DIR", dir)))

	mine := filepath.Join(certs, "envoy-rate-limit")
	g.limiter = streamcounter(t, []string{"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0",
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "PROMETHEUS_ADDR=127.0.0.1:0", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=" + streamtest.OwnRedis(t).Addr(), "RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit",
		"RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=info", "USE_STATSD=false",
		"USE_PROMETHEUS=true", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:18001",
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "GRPC_SERVER_USE_TLS=true",
		"GRPC_SERVER_TLS_CERT=" + mine + "/tls.crt", "GRPC_SERVER_TLS_KEY=" + mine + "/tls.key",
		"GRPC_SERVER_TLS_CA_CERT=" + mine + "/ca.crt", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + mine + "/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + mine + "/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + mine + "/ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true",
		"STREAMCOUNTER_CHECK_TIMEOUT=10s"}, "ratelimit") // not set by Envoy Gateway: the machine may be busy
	conn, err := grpc.NewClient(g.limiter.at("grpc"), grpc.WithTransportCredentials(credentials.NewTLS(
		clientTLS(t, filepath.Join(certs, "envoy"), "envoy-ratelimit.envoy-gateway-system"))))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	g.service = rlsv3.NewRateLimitServiceClient(conn)
	streamtest.Eventually(t, "Envoy Gateway listens", func() (bool, string) {
		conn, err := net.Dial("tcp", "127.0.0.1:18000")
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	})
	g.envoy = newEnvoy(t, "127.0.0.1:18000", "default/eg", filepath.Join(certs, "envoy"))
	return g
}

// apply changes a file of resources in one step.
func (g *gateway) apply(name, text string) {
	g.t.Helper()
	next := filepath.Join(g.resources, "."+name)
	testkit.Must(g.t, os.WriteFile(next, []byte(text), 0o600))
	testkit.Must(g.t, os.Rename(next, filepath.Join(g.resources, name)))
}

// route waits for a route of Envoy Gateway by the beginning of its name.
func (g *gateway) route(prefix string) (found *routev3.Route) {
	g.t.Helper()
	streamtest.Eventually(g.t, "Envoy Gateway serves "+prefix, func() (bool, string) {
		routes, err := g.envoy.routes()
		var names []string
		for name, route := range routes {
			if strings.HasPrefix(name, prefix) && len(route.TypedPerFilterConfig) > 0 {
				found = route
			}
			names = append(names, name)
		}
		return found != nil, fmt.Sprint(names, err)
	})
	return found
}

// admits sends one call for a request, as Envoy does, and returns the status.
func (g *gateway) admits(route *routev3.Route, r httpRequest) (rlsv3.RateLimitResponse_Code, error) {
	g.t.Helper()
	calls := g.envoy.asks(route, r)
	if len(calls) != 1 {
		g.t.Fatalf("%d calls for %s: %v", len(calls), route.Name, calls)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	answer, err := g.service.ShouldRateLimit(ctx, calls[0])
	return answer.GetOverallCode(), err
}

// Envoy Gateway's limits are all in force, whatever the names of its routes: without a hostname, with a wildcard,
// with long names.
func TestEnvoyGateway(t *testing.T) {
	resources, err := os.ReadFile("testdata/gateway.yaml")
	testkit.Must(t, err)
	g := startGateway(t, map[string]string{"gateway.yaml": string(resources)})
	r := httpRequest{method: "GET", path: "/page", address: "10.1.2.3",
		headers: map[string]string{"x-tenant": "acme", "x-plan": "free"}}
	for _, c := range []struct {
		route string
		limit int
	}{
		{"httproute/default/nohost/", 3},
		{"httproute/default/wildcard/", 4},
		{"httproute/payments-settlement-production/", 5},
	} {
		route := g.route(c.route)
		t.Run(filepath.Base(c.route), func(t *testing.T) {
			streamtest.Eventually(t, "the first request is answered", func() (bool, string) {
				code, err := g.admits(route, r)
				return code == rlsv3.RateLimitResponse_OK, fmt.Sprint(code, err)
			})
			for i := 1; i <= c.limit; i++ {
				want := rlsv3.RateLimitResponse_OK
				if i == c.limit {
					want = rlsv3.RateLimitResponse_OVER_LIMIT
				}
				if code, err := g.admits(route, r); code != want || err != nil {
					t.Errorf("request %d of %d to %s: %v, %v", i+1, c.limit, route.Name, code, err)
				}
			}
		})
	}
	resp, err := http.Get("http://" + g.limiter.at("http") + "/healthcheck")
	testkit.Must(t, err)
	if _ = resp.Body.Close(); resp.StatusCode != 200 {
		t.Errorf("/healthcheck: %s", resp.Status)
	}
}

// Limits that change under traffic change together, and never change back.
func TestEnvoyGatewayUpdates(t *testing.T) {
	const updates, first, second = 15, 1_000_000, 2_000_000
	base, err := os.ReadFile("testdata/gateway.yaml")
	testkit.Must(t, err)
	text, err := os.ReadFile("testdata/updated.yaml")
	testkit.Must(t, err)
	version := func(n int) string {
		return strings.NewReplacer("FIRST", fmt.Sprint(first+n), "SECOND", fmt.Sprint(second+n)).Replace(string(text))
	}
	g := startGateway(t, map[string]string{"gateway.yaml": string(base), "updated.yaml": version(0)})
	calls := g.envoy.asks(g.route("httproute/default/updated/"), httpRequest{method: "GET", path: "/",
		address: "10.1.2.3", headers: map[string]string{"x-tenant": "acme"}})
	if len(calls) != 1 || len(calls[0].Descriptors) != 2 {
		t.Fatalf("Envoy asks %v", calls)
	}
	// ask returns the version of the limits that an answer was made with.
	ask := func() (int, error) {
		answer, err := g.service.ShouldRateLimit(t.Context(), calls[0])
		if err != nil {
			return 0, err
		}
		a, b := answer.Statuses[0].GetCurrentLimit(), answer.Statuses[1].GetCurrentLimit()
		if a == nil || b == nil || answer.OverallCode != rlsv3.RateLimitResponse_OK ||
			a.RequestsPerUnit-first != b.RequestsPerUnit-second {
			return 0, fmt.Errorf("mixed answer %v", answer)
		}
		return int(a.RequestsPerUnit) - first, nil
	}
	streamtest.Eventually(t, "the limits are in force", func() (bool, string) {
		n, err := ask()
		return err == nil, fmt.Sprint(n, err)
	})

	var seen, requests atomic.Int64
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				atLeast := seen.Load()
				n, err := ask()
				if requests.Add(1); err != nil || int64(n) < atLeast {
					t.Errorf("version %d after %d, %v", n, atLeast, err)
					return
				}
				for now := seen.Load(); int64(n) > now && !seen.CompareAndSwap(now, int64(n)); now = seen.Load() {
				}
			}
		})
	}
	for n := 1; n <= updates && !t.Failed(); n++ {
		g.apply("updated.yaml", version(n))
		// On a busy machine Envoy Gateway needs half a minute to read its files.
		streamtest.Eventually(t, fmt.Sprintf("version %d is in force", n), func() (bool, string) {
			return seen.Load() == int64(n) || t.Failed(), fmt.Sprintf("version %d", seen.Load())
		})
	}
	close(done)
	clients.Wait()
	t.Logf("version %d at the end, after %d requests", seen.Load(), requests.Load())
}
