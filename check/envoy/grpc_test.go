package envoy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// descriptors makes one descriptor per text, such as "path=a user=1".
func descriptors(texts ...string) (list []*commonv3.RateLimitDescriptor) {
	for _, text := range texts {
		d := &commonv3.RateLimitDescriptor{}
		for _, pair := range strings.Fields(text) {
			k, v, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: k, Value: v})
		}
		list = append(list, d)
	}
	return list
}

// told writes a response as text: the overall code, then per descriptor its code, limit, what remains, and when more
// comes.
func told(r *rlsv3.RateLimitResponse) string {
	words := []string{r.OverallCode.String()}
	for _, s := range r.Statuses {
		text := s.Code.String()
		if l := s.CurrentLimit; l != nil {
			text += fmt.Sprintf(" %d/%s", l.RequestsPerUnit, l.Unit)
			if m := l.UnitMultiplier; m != nil {
				text += fmt.Sprintf("*%d", m.Value)
			}
			text += fmt.Sprintf(" left %d", s.LimitRemaining)
		}
		if s.DurationUntilReset != nil {
			text += " in " + s.DurationUntilReset.AsDuration().String()
		}
		words = append(words, text)
	}
	return strings.Join(words, "; ")
}

var edgeRules = []*windows.Rule{
	{Name: "path", Match: "edge/path=*", Windows: []windows.Window{{Limit: 3, Per: time.Minute}}},
	{Name: "user", Match: "edge/user=*", Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second},
		{Limit: 12, Per: 24 * time.Hour}}},
	{Name: "watch", Match: "edge/watch=*", Shadow: true, Windows: []windows.Window{{Limit: 1, Per: time.Hour}}},
}

// If there is no answer, there is an error with a code, and with the name that a client turns into its own error.
func TestErrorsOverGRPC(t *testing.T) {
	twoAnHour := []windows.Window{{Limit: 2, Per: time.Hour}}
	server := streamtest.OwnRedis(t)
	w := newWorldWith(t, check.Config{Timeout: timeout}, streamtest.Connect(t, server.Addr()),
		&windows.Rule{Name: "allow", Match: "allow:*", OnError: windows.OnErrorAllow, Windows: twoAnHour},
		&windows.Rule{Name: "deny", Match: "deny:*", OnError: windows.OnErrorDeny, Windows: twoAnHour},
		&windows.Rule{Name: "slot", Match: "slot:*", Windows: []windows.Window{{Limit: 5, Per: time.Minute,
			InFlight: true}}})
	client := w.dial(t, envoy.Config{})
	detail := metadata.AppendToOutgoingContext(t.Context(), "streamcounter-detail", "1")
	key := func(k string) *rlsv3.RateLimitRequest {
		return &rlsv3.RateLimitRequest{Domain: "streamcounter", HitsAddend: 3,
			Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "key",
				Value: k}}}}}
	}
	want := func(what string, ctx context.Context, r *rlsv3.RateLimitRequest, code codes.Code, reason string) {
		t.Helper()
		_, err := client.ShouldRateLimit(ctx, r)
		s := status.Convert(err)
		got := ""
		for _, d := range s.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "streamcounter" {
				got = info.Reason
			}
		}
		if s.Code() != code || got != reason {
			t.Errorf("%s: %v with reason %q, want %v and %q", what, err, got, code, reason)
		}
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = "path=a"
	}
	want("no domain", t.Context(), &rlsv3.RateLimitRequest{Descriptors: descriptors("path=a")}, codes.InvalidArgument,
		"bad-request")
	want("no descriptor", t.Context(), &rlsv3.RateLimitRequest{Domain: "edge"}, codes.InvalidArgument, "bad-request")
	want("too many", t.Context(), &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: descriptors(many...)},
		codes.InvalidArgument, "bad-request")
	twice := descriptors("path=a", "path=a")
	for i, d := range twice {
		d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(i + 1), Unit: 2}
	}
	want("two limits for one key", t.Context(), &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: twice},
		codes.InvalidArgument, "bad-request")
	want("a key with a line end", t.Context(), key("deny:\n"), codes.InvalidArgument, "bad-key")
	want("a cost above the limit, asked by our client", detail, key("deny:1"), codes.FailedPrecondition,
		"cost-exceeds-limit")
	want("a key that takes reservations only", t.Context(), key("slot:1"), codes.FailedPrecondition,
		"needs-reservation")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want("a caller who has left", ctx, key("allow:1"), codes.Canceled, "")
	server.Stop()
	r := key("deny:1")
	r.HitsAddend = 1
	want("Redis is away, on_error: deny", t.Context(), r, codes.Unavailable, "unavailable")
	r = key("allow:1")
	r.HitsAddend = 1
	if got, err := client.ShouldRateLimit(t.Context(), r); err != nil || got.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Errorf("Redis is away, on_error: allow: %v, %v", got, err)
	}
}

// Our client gets the answer in HTTP's form too.
func TestDetailOverGRPC(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), edgeRules...)
	client := w.dial(t, envoy.Config{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "streamcounter-detail", "1")
	got, err := client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "edge", HitsAddend: 3,
		Descriptors: descriptors("path=a")})
	testkit.Must(t, err)
	answer, _ := got.DynamicMetadata.AsMap()["streamcounter"].(map[string]any)
	checks, _ := answer["checks"].([]any)
	if len(checks) != 1 || answer["allowed"] != true || checks[0].(map[string]any)["rule"] != "path" {
		t.Errorf("detail %v", answer)
	}
	got, err = client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "edge",
		Descriptors: descriptors("path=a")})
	testkit.Must(t, err)
	if got.DynamicMetadata != nil {
		t.Error("a detail that nobody asked for")
	}
}

// The answer to a request that is denied from memory has the state of every descriptor.
func TestADenialFromMemorySaysAllStatuses(t *testing.T) {
	w := newWorldWith(t, check.Config{Timeout: patience, Denials: 100}, streamtest.Connect(t, streamtest.Redis(t)),
		&windows.Rule{Name: "all", Match: "edge/*", Windows: []windows.Window{{Limit: 2, Per: time.Minute}}})
	client := w.dial(t, envoy.Config{})
	ask := func(hits uint32, texts ...string) string {
		resp, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "edge", HitsAddend: hits,
			Descriptors: descriptors(texts...)})
		testkit.Must(t, err)
		return told(resp)
	}
	ask(2, "a=1")
	ask(2, "b=1")
	ask(1, "a=1") // denied by Redis, and remembered
	const want = "OVER_LIMIT; OVER_LIMIT 2/MINUTE left 0 in 1m0s; " +
		"OVER_LIMIT 2/MINUTE left 0 in 1m0s; OK 2/MINUTE left 2 in 0s"
	if got := ask(1, "a=1", "b=1", "c=1"); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
