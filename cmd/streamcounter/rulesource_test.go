package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
	port := testkit.FreePort(t)
	d := startDev(t, "--rls-config", dir, "--rls-tag", "client", "--grpc", fmt.Sprintf("127.0.0.1:%d", port))
	service := rlsv3.NewRateLimitServiceClient(connect(t, fmt.Sprintf("127.0.0.1:%d", port), nil))
	ask := func(key, value string, hits uint32) (rlsv3.RateLimitResponse_Code, *rlsv3.RateLimitResponse_RateLimit) {
		t.Helper()
		within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		answer, err := service.ShouldRateLimit(within, &rlsv3.RateLimitRequest{
			Domain: "edge", HitsAddend: hits,
			Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: key,
				Value: value}}}},
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

	url := fmt.Sprintf("http://127.0.0.1:%d/v1/events", d.http)
	if code, answer := request(t, http.MethodPost, url,
		`[{"key":"edge/{client=b}","count":3}]`); code != http.StatusAccepted {
		t.Fatal(code, answer)
	}
	streamtest.Eventually(t, 10*time.Second, "the worker has throttled b by the limit", func() (bool, string) {
		_, body := d.get("/v1/throttled")
		return strings.Contains(body, `"key":"edge/{client=b}"`), body
	})
	if code, _ := ask("client", "b", 1); code != over {
		t.Fatal("what was appended does not count for Envoy")
	}

	rewrite(t, path, strings.Replace(limitsText, "requests_per_unit: 3", "requests_per_unit: 9", 1))
	streamtest.Eventually(t, 10*time.Second, "the new limit holds", func() (bool, string) {
		_, limit := ask("client", "c", 1)
		return limit.GetRequestsPerUnit() == 9, limit.String()
	})
	if code, _ := ask("client", "b", 1); code != ok {
		t.Fatal("the count began anew, or the limit is the old one")
	}
	rewrite(t, path, "domain: edge\ndescriptors: [{")
	d.until("limits not reloaded, keeping the previous ones")
	streamtest.Eventually(t, 10*time.Second, "the failed reload is counted", func() (bool, string) {
		got := metric(t, fmt.Sprintf("http://127.0.0.1:%d", d.http), `streamcounter_reloads_total{outcome="error"}`)
		return got == "1", got
	})
}

func TestRulesCheckReadsLimits(t *testing.T) {
	config, rules := testkit.WriteFile(t, "edge.yaml", limitsText), devRules(t)
	all := testkit.WriteFile(t, "all.yml", strings.Replace(devRulesText, "user:*", "*", 1))
	hashed := testkit.WriteFile(t, "hashed.yml", `hash_key: not-on-this-machine
rules:
  - {name: a, match: "ip:*", windows: [{limit: 5, per: 10m, distinct: user, hash: true}]}
`)
	bad := testkit.WriteFile(t, "bad.yaml", limitsText+"    shadow: true\n")
	for _, c := range []struct {
		line string
		code int
		says []string
	}{
		{rules + " --rls-tag client --rls-config " + config, 0,
			[]string{"user:*", "edge/{client=*}", `edge/path=%2Flogin\*`, "sliding-log"}},
		{"--rls-algorithm fixed-window --json --rls-config " + config, 0,
			[]string{`"Match":"edge/client=*"`, `"Algorithm":"fixed-window"`}},
		{rules, 0, []string{"user:*"}},
		{hashed, 0, []string{`values of "user", hashed, in any`}},
		{hashed + " --json", 0, []string{`"Hash":"hash"`}},
		{hashed + " --rls-config " + config, 0, []string{"hashed", "edge/client=*"}},
		{"", failure, []string{"--rls-config"}},
		{"--rls-config " + bad, failure, []string{`bad.yaml:9:5: unknown field "shadow"`}},
		{"--rls-algorithm leaky --rls-config " + config, failure, []string{`algorithm "leaky"`}},
		{all + " --rls-config " + config, failure, []string{`rule "api" (match "*")`, `"edge--path--login-`}},
	} {
		expect(t, "rules check "+c.line, c.code, c.says...)
	}
}
