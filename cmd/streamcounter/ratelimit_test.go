package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/streamtest/xds"
	"github.com/streamcounter/streamcounter/internal/testkit"
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
	return &rlsv3.RateLimitRequest{Domain: "default/eg/http", Descriptors: []*commonv3.RateLimitDescriptor{
		descriptor("route", "route", "rule-0-match-0", client)}}
}

// Envoy Gateway's environment, over TLS. The program starts before its control plane. Wrong limits are refused with the
// reason, and the old ones stay. (internal/xds has the control plane that goes away, and tools/partners limits that
// change under load.)
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
		streamtest.Eventually(t, "gRPC health "+serving, func() (bool, string) {
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

	bad := gateway(2, 9)
	bad.Descriptors[0].Descriptors[1].RateLimit.Unit = rlsconf.RateLimitUnit_UNKNOWN
	plane.Set("2", bad)
	if why := plane.Nacked("1"); !strings.Contains(why,
		`resource "default/eg/http": descriptors[0].descriptors[1].rate_limit: unit is missing`) {
		t.Errorf("refused because: %s", why)
	}
	health(`OK, but refused: resource "default/eg/http": descriptors[0].descriptors[1].rate_limit: unit`, "SERVING", 1)
	want("b", ok, ok, over)
	plane.Set("3", gateway(3, 5))
	plane.Acked("3")
	health("OK", "SERVING", 0)
	want("b", ok, over)
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
	keys := keysOf(t, r.prefix)
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
		descriptor("client", "a"), descriptor("path", "b")}}
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

// A variable that cannot have its effect here ends the start, and the error names it. The stories of
// internal/settings have the others.
func TestRateLimitRefuses(t *testing.T) {
	t.Setenv("REDIS_URL", "127.0.0.1:1")
	t.Setenv("REDIS_SOCKET_TYPE", "tcp")
	t.Setenv("RUNTIME_ROOT", "/nowhere")
	expect(t, "ratelimit", failure, ": RUNTIME_ROOT: load limits: stat /nowhere/config: ")
	t.Setenv("CACHE_KEY_PREFIX", "rf:")
	expect(t, "ratelimit", failure, `: CACHE_KEY_PREFIX: prefix "rf:": expected 1 to 32 of a-z, 0-9`)
	if got := arguments([]string{"/bin/ratelimit", "--help"}); strings.Join(got, " ") != "ratelimit --help" {
		t.Errorf("by its own name: %v", got)
	}
}

const limitsText = `domain: edge
descriptors:
  - key: client
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: path
    value: /login*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 2}
`

// Events of producers and requests of Envoy are one count under one limit: the workers find by the key the same limit
// that the server finds by the descriptor.
func TestLimitsOfEnvoy(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "edge.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(limitsText), 0o600))
	at := testkit.FreeAddr(t)
	d := startDev(t, "--rls-config", dir, "--rls-tag", "client", "--grpc", at)
	service := rlsv3.NewRateLimitServiceClient(connect(t, at, nil))
	ask := func(key, value string, hits uint32) (rlsv3.RateLimitResponse_Code, *rlsv3.RateLimitResponse_RateLimit) {
		t.Helper()
		within, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		answer, err := service.ShouldRateLimit(within, &rlsv3.RateLimitRequest{
			Domain: "edge", HitsAddend: hits, Descriptors: []*commonv3.RateLimitDescriptor{descriptor(key, value)},
		}, grpc.WaitForReady(true))
		testkit.Must(t, err)
		return answer.OverallCode, answer.Statuses[0].CurrentLimit
	}
	const ok, over = rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT
	if code, limit := ask("client", "a", 3); code != ok || limit.GetRequestsPerUnit() != 3 ||
		limit.GetUnit() != rlsv3.RateLimitResponse_RateLimit_HOUR {
		t.Fatal(code, limit)
	}
	if code, _ := ask("client", "a", 1); code != over {
		t.Fatal(code)
	}
	if code, _ := ask("path", "/login", 2); code != ok {
		t.Fatal(code)
	}
	if code, _ := ask("path", "/login/again", 1); code != over {
		t.Fatal("values of a shared pattern have counts of their own")
	}
	if _, body := d.get("/v1/throttled"); !strings.Contains(body, `"key":"edge/{client=a}"`) ||
		!strings.Contains(body, `"rule":"edge--client"`) {
		t.Fatal(body)
	}

	url := d.url() + "/v1/events"
	if code, answer := request(t, http.MethodPost, url,
		`[{"key":"edge/{client=b}","count":3}]`); code != http.StatusAccepted {
		t.Fatal(code, answer)
	}
	streamtest.Eventually(t, "the worker has throttled b by the limit", func() (bool, string) {
		_, body := d.get("/v1/throttled")
		return strings.Contains(body, `"key":"edge/{client=b}"`), body
	})
	if code, _ := ask("client", "b", 1); code != over {
		t.Fatal("what was appended does not count for Envoy")
	}

	rewrite(t, path, strings.Replace(limitsText, "requests_per_unit: 3", "requests_per_unit: 9", 1))
	streamtest.Eventually(t, "the new limit holds", func() (bool, string) {
		_, limit := ask("client", "c", 1)
		return limit.GetRequestsPerUnit() == 9, limit.String()
	})
	if code, _ := ask("client", "b", 1); code != ok {
		t.Fatal("the count began anew, or the limit is the old one")
	}
}
