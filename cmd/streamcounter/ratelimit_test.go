package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/streamtest/xds"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// rateLimit is the program under the name by which Envoy Gateway calls it.
type rateLimit struct {
	*process
	prefix string
}

// startRateLimit runs the program with variables, on free ports.
func startRateLimit(t *testing.T, variables map[string]string) *rateLimit {
	t.Helper()
	r := &rateLimit{prefix: streamtest.Prefix(t)}
	for name, value := range map[string]string{"HOST": "127.0.0.1", "PORT": "0", "GRPC_HOST": "127.0.0.1",
		"GRPC_PORT": "0", "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0", "PROMETHEUS_ADDR": "127.0.0.1:0",
		"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": strings.TrimPrefix(streamtest.Redis(t), "redis://"),
		"STREAMCOUNTER_PREFIX": r.prefix} {
		t.Setenv(name, value)
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
	r.process = startProgram(t, "ratelimit")
	return r
}

// at returns the address of a server of the program, from its log.
func (r *rateLimit) at(part string) string {
	r.t.Helper()
	r.until(`"msg":"ready"`)
	m := regexp.MustCompile(`"` + part + `":"([^"]+)"`).FindStringSubmatch(r.text())
	if m == nil {
		r.t.Fatalf("%s is not served:\n%s", part, r.text())
	}
	return m[1]
}

func (r *rateLimit) client(config *tls.Config) rlsv3.RateLimitServiceClient {
	r.t.Helper()
	return rlsv3.NewRateLimitServiceClient(connect(r.t, r.at("grpc"), config))
}

func (r *rateLimit) health(config *tls.Config) healthv1.HealthClient {
	r.t.Helper()
	return healthv1.NewHealthClient(connect(r.t, r.at("grpc"), config))
}

func (r *rateLimit) get(part, path string) (int, string) {
	r.t.Helper()
	return request(r.t, "GET", "http://"+r.at(part)+path, "")
}

// warnings returns the warnings of the log, except those about Redis's settings.
func (r *rateLimit) warnings() (list []string) {
	for line := range strings.Lines(r.text()) {
		if strings.Contains(line, `"WARN"`) && !strings.Contains(line, `"check":"redis.`) {
			list = append(list, line)
		}
	}
	return list
}

// gateway returns a domain as Envoy Gateway's translator makes it: a route, and below it a rule that distinguishes
// clients, with a separate limit for one client.
func gateway(each, vip uint32) *rlsconf.RateLimitConfig {
	rule := func(value string, n uint32) *rlsconf.RateLimitDescriptor {
		return &rlsconf.RateLimitDescriptor{Key: "rule-0-match-0", Value: value,
			RateLimit: &rlsconf.RateLimitPolicy{RequestsPerUnit: n, Unit: rlsconf.RateLimitUnit_HOUR}}
	}
	return &rlsconf.RateLimitConfig{Name: "default/eg/http", Domain: "default/eg/http",
		Descriptors: []*rlsconf.RateLimitDescriptor{{Key: "route", Value: "route",
			Descriptors: []*rlsconf.RateLimitDescriptor{rule("", each), rule("vip", vip)}}}}
}

func gatewayRequest(client string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "default/eg/http", Descriptors: []*commonv3.RateLimitDescriptor{{
		Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "route", Value: "route"},
			{Key: "rule-0-match-0", Value: client}}}}}
}

// Envoy Gateway's environment, over TLS. The program starts before its control plane. Limits change under load
// without an error. Wrong limits are refused with the reason, and the old ones stay. The control plane stops and
// comes back.
func TestEnvoyGateway(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("envoy-gateway")
	mine, mineKey := ours.Issue("envoy-rate-limit")
	serving := ours.Config(cert, key)
	serving.ClientAuth, serving.ClientCAs = tls.RequireAndVerifyClientCert, serving.RootCAs
	plane := xds.New(t, serving)
	r := startRateLimit(t, map[string]string{
		"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true",
		"RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false", "CONFIG_TYPE": "GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_SERVER_URL": plane.Addr, "CONFIG_GRPC_XDS_NODE_ID": xds.Node, "GRPC_SERVER_USE_TLS": "true",
		"GRPC_SERVER_TLS_CERT": mine, "GRPC_SERVER_TLS_KEY": mineKey, "GRPC_SERVER_TLS_CA_CERT": ours.CA,
		"CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": mine,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY": mineKey, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": ours.CA,
		"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "USE_PROMETHEUS": "true",
		"PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
	})
	ask := r.client(ours.Config("", ""))
	health := func(body, serving string, refused int) {
		t.Helper()
		if code, got := r.get("http", "/healthcheck"); code != 200 || !strings.HasPrefix(got, body) ||
			body == "OK" && got != body {
			t.Errorf("/healthcheck: %d %s, want %s", code, got, body)
		}
		streamtest.Eventually(t, 30*time.Second, "gRPC health "+serving, func() (bool, string) {
			resp, err := r.health(ours.Config("", "")).Check(t.Context(),
				&healthv1.HealthCheckRequest{Service: "ratelimit"})
			return err == nil && resp.Status.String() == serving, fmt.Sprint(resp, err)
		})
		if _, body := r.get("metrics", "/metrics"); !strings.Contains(body,
			fmt.Sprintf("streamcounter_rules_refused %d\n", refused)) {
			t.Errorf("the gauge is not %d", refused)
		}
	}
	health("OK, no limits yet", "NOT_SERVING", 0)
	if _, err := ask.ShouldRateLimit(t.Context(), gatewayRequest("a")); status.Code(err) != codes.Unavailable ||
		status.Convert(err).Message() != "no limits yet" {
		t.Errorf("before limits have come: %v, want UNAVAILABLE", err)
	}
	plane.Set("1", gateway(2, 5))
	plane.Start()
	plane.Acked("1")
	health("OK", "SERVING", 0)
	want := func(client string, codes ...rlsv3.RateLimitResponse_Code) {
		t.Helper()
		for i, code := range codes {
			resp, err := ask.ShouldRateLimit(t.Context(), gatewayRequest(client))
			if err != nil || resp.OverallCode != code {
				t.Errorf("%s, request %d: %v %v, want %s", client, i+1, resp, err, code)
			}
		}
	}
	const ok, over = rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT
	want("a", ok, ok, over)
	want("vip", ok, ok, ok, ok, ok, over)

	// Under load.
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var calls atomic.Int64
	for n := range 4 {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := ask.ShouldRateLimit(ctx, gatewayRequest(fmt.Sprintf("load-%d-%d", n, i%100)))
				if err != nil && ctx.Err() == nil {
					t.Errorf("under load: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for version := 2; version <= 5; version++ {
		before := calls.Load()
		plane.Set(fmt.Sprint(version), gateway(2, 5+uint32(version)))
		plane.Acked(fmt.Sprint(version))
		resp, err := ask.ShouldRateLimit(t.Context(), gatewayRequest("vip"))
		if err != nil || resp.Statuses[0].CurrentLimit.RequestsPerUnit != 5+uint32(version) {
			t.Errorf("version %d: %v %v", version, resp, err)
		}
		streamtest.Eventually(t, 30*time.Second, "calls under each version", func() (bool, string) {
			return calls.Load() > before, ""
		})
	}
	bad := gateway(9, 9)
	bad.Descriptors[0].Descriptors[1].RateLimit.Unit = rlsconf.RateLimitUnit_UNKNOWN
	plane.Set("6", bad)
	if why := plane.Nacked("5"); !strings.Contains(why,
		`resource "default/eg/http": descriptors[0].descriptors[1].rate_limit: unit is missing`) {
		t.Errorf("refused because: %s", why)
	}
	health(`OK, but refused: resource "default/eg/http": descriptors[0].descriptors[1].rate_limit: unit`, "SERVING", 1)
	want("b", ok, ok, ok, ok, ok, ok, ok, ok, ok, over)
	plane.Stop()
	newer := streamtest.NewAuthority(t) // for all certificates
	newer.IssueTo("envoy-rate-limit", mine, mineKey)
	authority, err := os.ReadFile(newer.CA)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(ours.CA, authority, 0o600))
	serving = newer.Config(newer.Issue("envoy-gateway"))
	serving.ClientAuth, serving.ClientCAs = tls.RequireAndVerifyClientCert, serving.RootCAs
	plane.SetTLS(serving)
	r.until("the xDS server is away, the limits stay as they are")
	want("c", ok)
	plane.Set("7", gateway(3, 5))
	plane.Start()
	plane.Acked("7")
	ours = newer // for the program's server too
	health("OK", "SERVING", 0)
	want("d", ok, ok, ok, over)
	cancel()
	running.Wait()
	r.afterwards()
}

// afterwards checks what the program provides beside decisions.
func (r *rateLimit) afterwards() {
	t := r.t
	t.Helper()
	if _, body := r.get("metrics", "/metrics"); !strings.Contains(body, `ratelimit_service_rate_limit_over_limit{`+
		`domain="default/eg/http",key1="route_route",key2="rule-0-match-0_vip"}`) ||
		!strings.Contains(body, "ratelimit_service_config_load_error 1\n") {
		t.Errorf("metrics:\n%s", body)
	}
	if _, body := r.get("debug", "/rlconfig"); body != "default/eg/http.route_route.rule-0-match-0: unit=HOUR "+
		"requests_per_unit=3, shadow_mode: false, quota_mode: false\ndefault/eg/http.route_route.rule-0-match-0_vip: "+
		"unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false\n" {
		t.Errorf("/rlconfig:\n%s", body)
	}
	for i, code := range []int{200, 200, 200, 429} {
		got, body := request(t, "POST", "http://"+r.at("http")+"/json",
			`{"domain": "default/eg/http", "descriptors": [{"entries": [{"key": "route", "value": "route"},
				{"key": "rule-0-match-0", "value": "json"}]}]}`)
		if got != code || !strings.Contains(body, `"overallCode"`) {
			t.Errorf("/json, request %d: %d %s, want %d", i+1, got, body, code)
		}
	}
	// Nobody reads the messages that would be published, so nothing is stored for them.
	keys, err := stream.NewKeys(r.prefix, stream.DefaultPartitions)
	testkit.Must(t, err)
	redis := streamtest.Connect(t, streamtest.Redis(t))
	for p := range keys.Partitions {
		n, err := redis.Exists(context.Background(), keys.Outbox(p), keys.Levels(p), keys.Due(p)).Result()
		if err != nil || n != 0 {
			t.Errorf("partition %d: %d keys of levels and the outbox, %v", p, n, err)
		}
	}
	for _, line := range r.warnings() {
		if !strings.Contains(line, "the xDS server is away") {
			t.Errorf("a warning: %s", line)
		}
	}
	if code := r.interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The program accepts no connections before the first limits, unless a start without limits is requested.
func TestNothingIsServedBeforeLimits(t *testing.T) {
	plane := xds.New(t, nil)
	port := testkit.FreePort(t)
	r := startRateLimit(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": plane.Addr,
		"CONFIG_GRPC_XDS_NODE_ID": xds.Node, "PORT": fmt.Sprint(port)})
	r.until("waiting for the first limits")
	if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		_ = conn.Close()
		t.Error("a connection is accepted before limits have come")
	}
	plane.Set("1", gateway(2, 5))
	plane.Start()
	if code, body := r.get("http", "/healthcheck"); code != 200 || body != "OK" {
		t.Errorf("/healthcheck: %d %s", code, body)
	}
	if code := r.interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Limits come from the files that the variables name, with the modes and names of users who migrate.
func TestRateLimitOfFiles(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	testkit.Must(t, os.MkdirAll(dir, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(
		"domain: edge\ndescriptors: [{key: client, rate_limit: {unit: hour, requests_per_unit: 2}}]\n"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(
		"domain: edge\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1}}]\n"), 0o600))
	r := startRateLimit(t, map[string]string{"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "ratelimit",
		"MERGE_DOMAIN_CONFIG": "true", "SHADOW_MODE": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
		"LIMIT_RESET_HEADER": "x-again", "REDIS_PERSECOND": "true", "LOG_FORMAT": "json", "USE_PROMETHEUS": "true"})
	ask := r.client(nil)
	request := &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "client", Value: "a"}}},
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "path", Value: "b"}}}}}
	var last *rlsv3.RateLimitResponse
	for range 2 {
		var err error
		last, err = ask.ShouldRateLimit(t.Context(), request)
		testkit.Must(t, err)
	}
	headers := map[string]string{}
	for _, h := range last.ResponseHeadersToAdd {
		headers[h.Key] = h.Value
	}
	if last.OverallCode != rlsv3.RateLimitResponse_OK || last.Statuses[1].Code != rlsv3.RateLimitResponse_OVER_LIMIT ||
		last.Statuses[0].Code != rlsv3.RateLimitResponse_OK || last.Statuses[0].LimitRemaining != 0 {
		t.Errorf("in shadow mode: %v", last)
	}
	if headers["RateLimit-Limit"] != "1" || headers["RateLimit-Remaining"] != "0" || headers["x-again"] == "" ||
		headers["x-again"] == "0" || len(headers) != 3 {
		t.Errorf("headers %v", headers)
	}
	if _, body := r.get("metrics", "/metrics"); !strings.Contains(body, "ratelimit_service_config_load_success 1\n") {
		t.Errorf("the first load is not counted:\n%s", body)
	}
	r.until("REDIS_PERSECOND is not supported: all limits are counted at REDIS_URL")
	if list := r.warnings(); len(list) != 1 {
		t.Errorf("warnings: %v", list)
	}
}

// A variable that cannot have its effect here ends the start, and the error names it.
func TestRateLimitRefuses(t *testing.T) {
	for variable, c := range map[string][2]string{
		"BACKEND_TYPE":      {"memcache", `BACKEND_TYPE is "memcache": limits are counted in Redis alone`},
		"CACHE_KEY_PREFIX":  {"rf:", `: CACHE_KEY_PREFIX: prefix "rf:": expected 1 to 32 of a-z, 0-9`},
		"CONFIG_TYPE":       {"ETCD", `CONFIG_TYPE is "ETCD": expected FILE or GRPC_XDS_SOTW`},
		"GRPC_PORT":         {"x", `GRPC_PORT is "x": expected a port`},
		"SHADOW_MODE":       {"maybe", `SHADOW_MODE is "maybe"`},
		"REDIS_TYPE":        {"RING", `REDIS_TYPE is "RING": expected SINGLE, SENTINEL or CLUSTER`},
		"LOG_LEVEL":         {"loud", `LOG_LEVEL is "loud"`},
		"NEAR_LIMIT_RATIO":  {"80", `NEAR_LIMIT_RATIO is "80": expected a share from 0 to 1`},
		"REDIS_SOCKET_TYPE": {"udp", `REDIS_SOCKET_TYPE is "udp": expected tcp or unix`},
		"RUNTIME_ROOT":      {"/nowhere", ": RUNTIME_ROOT: load limits: stat /nowhere/config: "},
		"GRPC_UDS":          {"/tmp/x.sock", "GRPC_UDS"},
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv("REDIS_URL", "127.0.0.1:1")
			t.Setenv("REDIS_SOCKET_TYPE", "tcp")
			t.Setenv(variable, c[0])
			expect(t, "ratelimit", failure, c[1])
		})
	}
}

// Redis is configured with the variables of envoyproxy/ratelimit.
func TestRateLimitRedis(t *testing.T) {
	for _, c := range []struct {
		url, kind, socket, auth, tls string
		want                         string
	}{
		{"redis.redis.svc:6379", "", "tcp", "", "", "redis://redis.redis.svc:6379"},
		{"r:1", "single", "tcp", "s3:cr@t", "true", "rediss://s3:cr%40t@r:1"},
		{"/run/redis.sock", "", "", "pass", "", "unix://:pass@/run/redis.sock"},
		{"main,a:1,b:2", "SENTINEL", "tcp", "u:p", "", "redis+sentinel://u:p@a:1,b:2/main"},
		{"a:1,b:2", "CLUSTER", "tcp", "", "true", "rediss://a:1,b:2"},
		{"a:1", "cluster", "tcp", "", "", "redis://a:1"},
		{"rediss://x@h:1", "", "", "", "", "rediss://x@h:1"},
	} {
		cmd := newRatelimit()
		for name, value := range map[string]string{"REDIS_URL": c.url, "REDIS_TYPE": c.kind,
			"REDIS_SOCKET_TYPE": c.socket, "REDIS_AUTH": c.auth, "REDIS_TLS": c.tls} {
			t.Setenv(name, value)
		}
		testkit.Must(t, cmd.PreRunE(cmd, nil))
		got := cmd.Flags().Lookup("redis").Value.String()
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		if _, err := backend.RedisOptions(got, settings.ClientFiles{}); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
	if got := arguments([]string{"/bin/ratelimit", "--help"}); strings.Join(got, " ") != "ratelimit --help" {
		t.Errorf("by its own name: %v", got)
	}
}
