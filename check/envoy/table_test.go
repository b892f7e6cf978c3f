package envoy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// requestOf reads "hits=2: path=a | hits=0 path=b".
func requestOf(t *testing.T, line string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: "edge"}
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 32)
		testkit.Must(t, err)
		return n
	}
	if all, rest, ok := strings.Cut(line, ": "); ok {
		r.HitsAddend, line = uint32(number(strings.TrimPrefix(all, "hits="))), rest
	}
	for _, text := range strings.Split(line, "|") {
		d := descriptors(text)[0]
		d.Entries = slices.DeleteFunc(d.Entries, func(e *commonv3.RateLimitDescriptor_Entry) bool {
			if e.Key == "hits" {
				d.HitsAddend = wrapperspb.UInt64(number(e.Value))
			}
			return e.Key == "hits"
		})
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// quotasOf words what the metadata says of quotas.
func quotasOf(t *testing.T, r *rlsv3.RateLimitResponse) string {
	if r.DynamicMetadata == nil {
		return ""
	}
	fields := r.DynamicMetadata.AsMap()
	if fields["domain"] != "edge" || fields["quotaModeEnabled"] != true ||
		len(fields["descriptors"].([]any)) != len(r.Statuses) {
		t.Errorf("metadata %v", fields)
	}
	text, err := json.Marshal(fields["quotaModeViolations"])
	testkit.Must(t, err)
	return "; quotas over " + string(text)
}

func headersOf(r *rlsv3.RateLimitResponse) string {
	var out []string
	for _, h := range r.ResponseHeadersToAdd {
		out = append(out, h.Key+": "+h.Value)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// Requests and answers as they stand in testdata/requests.txt.
func TestRequestsAndAnswers(t *testing.T) {
	const path = "testdata/requests.txt"
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	limits, err := config.Load("testdata/limits.yaml")
	testkit.Must(t, err)
	w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), limits.Rules()...)
	client := w.dial(t, envoy.Config{Headers: true, Limits: func() *config.Limits { return limits }})
	var out []string
	var last *rlsv3.RateLimitResponse
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		mark, rest, _ := strings.Cut(line, " ")
		switch mark {
		case "<":
		case ">":
			last, err = client.ShouldRateLimit(t.Context(), requestOf(t, rest))
			testkit.Must(t, err)
			out = append(out, line, "< "+told(last)+quotasOf(t, last))
		case "$":
			out = append(out, "$ "+headersOf(last))
		case "=":
			key, _, _ := strings.Cut(rest, ": ")
			out = append(out, fmt.Sprintf("= %s: %d", key, w.used(t, key)))
		case "+":
			d, err := time.ParseDuration(rest)
			testkit.Must(t, err)
			w.advance(d)
			out = append(out, line)
		default:
			out = append(out, line)
		}
	}
	testkit.Golden(t, path, strings.Join(out, "\n")+"\n")
}
