package envoy_test

import (
	"encoding/json"
	"fmt"
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
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: limits or rules, a line of dashes, and what is asked under them, one step a line:
//
//	> path=a | hits=2 path=b   descriptors; hits=N before one is its own hits_addend, back=N gives so many back
//	> hits=2: path=a           with a hits_addend of the request
//	< OK; OK 3/MINUTE left 2   the answer
//	$ Retry-After: 60          its headers
//	= edge/path=a: 3           what a key has used
//	+ 45s                      time passes
//
// Answers, headers and what is used are written by go test ./check/envoy -run Stories -update, and read in review.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, path, under string, steps []string) []string {
		c := envoy.Config{Headers: true}
		var rules []*windows.Rule
		if strings.Contains(under, "\nrules:\n") {
			parsed, err := windows.Parse(path, []byte(under))
			testkit.Must(t, err)
			rules = parsed.List()
		} else {
			source, err := config.NewSource(config.SourceConfig{Limits: testkit.WriteFile(t, "limits.yaml", under)})
			testkit.Must(t, err)
			c.Limits, rules = source.Limits, source.Rules().List()
		}
		return tell(t, newWorld(t, streamtest.AnyRedis(t), rules...), c, steps)
	})
}

func tell(t *testing.T, w *world, c envoy.Config, steps []string) (out []string) {
	client := w.dial(t, c)
	var last *rlsv3.RateLimitResponse
	for _, line := range steps {
		mark, rest, _ := strings.Cut(line, " ")
		switch mark {
		case "<":
			continue
		case ">":
			var err error
			last, err = client.ShouldRateLimit(t.Context(), requestOf(t, rest))
			testkit.Must(t, err)
			out = append(out, line)
			line = "< " + told(last) + quotasOf(t, last)
		case "$":
			line = "$ " + headersOf(last)
		case "=":
			key, _, _ := strings.Cut(rest, ": ")
			line = fmt.Sprintf("= %s: %d", key, w.used(t, key))
		case "+":
			d, err := time.ParseDuration(rest)
			testkit.Must(t, err)
			w.advance(d)
		}
		out = append(out, line)
	}
	return out
}

// requestOf reads "hits=2: path=a | hits=0 path=b | back=1 path=c".
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
			if e.Key != "hits" && e.Key != "back" {
				return false
			}
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(number(e.Value)), e.Key == "back"
			return true
		})
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// quotasOf returns as text what the metadata says about quotas.
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
