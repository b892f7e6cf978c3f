package envoy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: limits or rules, a line of dashes, and what is asked under them, one step a line:
//
//	> path=a | hits=2 path=b   descriptors; hits=N before one is its own hits_addend, back=N gives so many back,
//	                           limit=N is a limit per minute that it brings
//	> hits=2: path=a           with a hits_addend of the request; domain=x: one that is not edge
//	< OK; OK 3/MINUTE left 2   the answer, or the code and the name of an error
//	$ Retry-After: 60          its headers
//	@ {"domain":"edge"}        its metadata
//	= edge/path=a: 3           what a key has used
//	! edge/path=a              an operator blocks a key
//	% path: over_limit 1       the hits of a limit, as the statistics of envoyproxy/ratelimit count them
//	+ 45s                      time passes
//
// A line "# options: quota denials" sets options of the service. Answers and what follows from them are written by
// go test ./check/envoy -run Stories -update, and read in review.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, path, under string, steps []string) []string {
		has := func(option string) bool {
			return slices.Contains(strings.Fields(regexp.MustCompile("(?m)^# options: .*").FindString(under)), option)
		}
		s := &story{t: t, ctx: t.Context(), registry: prometheus.NewRegistry(),
			detailed: has("metadata") || has("detail")}
		c := envoy.Config{Headers: true, Metadata: has("metadata"), Metrics: envoy.NewMetrics(s.registry, 0.8)}
		var rules []*windows.Rule
		if strings.Contains(under, "\nrules:\n") {
			parsed, err := windows.Parse(path, []byte(under))
			testkit.Must(t, err)
			rules = parsed.List()
		} else {
			source, err := config.NewSource(config.SourceConfig{Limits: testkit.WriteFile(t, "limits.yaml", under),
				Options: config.Options{Quota: has("quota"), Shadow: has("shadow")}})
			testkit.Must(t, err)
			c.Limits, rules = source.Limits, source.Rules().List()
		}
		decisions := check.Config{Timeout: patience}
		if has("denials") {
			decisions.Denials = 100
		}
		if has("detail") {
			s.ctx = metadata.AppendToOutgoingContext(s.ctx, "streamcounter-detail", "1")
		}
		if has("bytes") {
			s.calls = append(s.calls, notUTF8)
		}
		s.world = newWorld(t, decisions, streamtest.AnyRedis(t), rules...)
		s.client = s.dial(t, c)
		var out []string
		for _, line := range steps {
			if !strings.HasPrefix(line, "<") {
				out = append(out, s.step(line)...)
			}
		}
		return out
	})
}

// story is a service under the limits of a story.
type story struct {
	*world
	t        *testing.T
	ctx      context.Context
	client   rlsv3.RateLimitServiceClient
	calls    []grpc.CallOption
	registry *prometheus.Registry
	detailed bool // all answers have metadata, not only those about quotas
	last     *rlsv3.RateLimitResponse
}

// step does one step, and returns its line with its answer.
func (s *story) step(line string) []string {
	mark, rest, _ := strings.Cut(line, " ")
	name, _, _ := strings.Cut(rest, ": ")
	switch mark {
	case ">":
		resp, err := s.client.ShouldRateLimit(s.ctx, requestOf(s.t, rest), s.calls...)
		if s.last = resp; err != nil {
			return []string{line, "< " + refused(err)}
		}
		if s.detailed {
			return []string{line, "< " + told(resp)}
		}
		return []string{line, "< " + told(resp) + quotasOf(s.t, resp)}
	case "$":
		return []string{"$ " + headersOf(s.last)}
	case "@":
		text, err := json.Marshal(s.last.DynamicMetadata.AsMap())
		testkit.Must(s.t, err)
		return []string{"@ " + string(text)}
	case "=":
		return []string{fmt.Sprintf("= %s: %d", name, s.used(s.t, name))}
	case "%":
		return []string{"% " + name + ":" + s.hits(name)}
	case "!":
		_, err := s.service.SetOverride(s.ctx, api.Override{Key: rest, Block: true}, 0)
		testkit.Must(s.t, err)
	case "+":
		d, err := time.ParseDuration(rest)
		testkit.Must(s.t, err)
		s.advance(d)
	case "#", "":
	default:
		s.t.Fatalf("unknown step %q", line)
	}
	return []string{line}
}

// hits returns the metrics of the limit with this first key.
func (s *story) hits(key string) (text string) {
	s.t.Helper()
	families, err := s.registry.Gather()
	testkit.Must(s.t, err)
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), "ratelimit_service_rate_limit_")
		for _, m := range f.GetMetric() {
			if labels := m.GetLabel(); ours && len(labels) == 2 && labels[1].GetValue() == key {
				text += fmt.Sprintf(" %s %v", name, m.GetCounter().GetValue())
			}
		}
	}
	return text
}

// refused returns the code of an error, and the name that a client turns into its own error.
func refused(err error) string {
	text := status.Code(err).String()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == api.ErrorDomain {
			text += " " + info.Reason
		}
	}
	return text
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
		line = rest
		if domain, ok := strings.CutPrefix(all, "domain="); ok {
			r.Domain = domain
		} else {
			r.HitsAddend = uint32(number(strings.TrimPrefix(all, "hits=")))
		}
	}
	if line == "nothing" {
		return r
	}
	for _, text := range strings.Split(line, " | ") {
		d := &commonv3.RateLimitDescriptor{}
		for _, pair := range strings.Fields(text) {
			switch key, value, _ := strings.Cut(pair, "="); key {
			case "hits", "back":
				d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(number(value)), key == "back"
			case "limit":
				d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(number(value)),
					Unit: typev3.RateLimitUnit_MINUTE}
			default:
				d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
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
