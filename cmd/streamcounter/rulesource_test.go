package main

import (
	"context"
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
