package envoy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

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
		} else if s.LimitRemaining > 0 {
			text += " unlimited"
		}
		if s.DurationUntilReset != nil {
			text += " in " + s.DurationUntilReset.AsDuration().String()
		}
		words = append(words, text)
	}
	return strings.Join(words, "; ")
}

// Errors that no story has: of a server that is away, of a caller who has left, and of what no line of a story can say.
func TestErrorsOverGRPC(t *testing.T) {
	twoAnHour := []windows.Window{{Limit: 2, Per: time.Hour}}
	server := streamtest.OwnRedis(t)
	w := newWorld(t, check.Config{Timeout: timeout}, streamtest.Connect(t, server.Addr()),
		&windows.Rule{Name: "allow", Match: "edge/allow=*", OnError: windows.OnErrorAllow, Windows: twoAnHour},
		&windows.Rule{Name: "deny", Match: "*", OnError: windows.OnErrorDeny, Windows: twoAnHour})
	client := w.dial(t, envoy.Config{})
	want := func(what string, r *rlsv3.RateLimitRequest, want string) {
		t.Helper()
		if resp, err := client.ShouldRateLimit(t.Context(), r); refused(err) != want {
			t.Errorf("%s: %v, %v, want %s", what, resp, err, want)
		}
	}
	want("too many", requestOf(t, strings.Repeat("path=a | ", 100)+"path=a"), "InvalidArgument bad-request")
	lineEnd := requestOf(t, "domain=streamcounter: key")
	lineEnd.Descriptors[0].Entries[0].Value = "a\n"
	want("a key with a line end", lineEnd, "InvalidArgument bad-key")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The service itself, because a client gives up before it sends.
	for left, want := range map[context.Context]string{ctx: "Canceled", testkit.Late(t.Context()): "DeadlineExceeded"} {
		if _, err := envoy.NewService(w.service, envoy.Config{Rules: w.rules.Rules}).ShouldRateLimit(left,
			requestOf(t, "allow=1")); refused(err) != want {
			t.Errorf("a caller who has left: %v, want %s", err, want)
		}
	}
	server.Stop()
	want("Redis is away, on_error: deny", requestOf(t, "deny=1"), "Unavailable unavailable")
	if got, err := client.ShouldRateLimit(t.Context(), requestOf(t, "allow=1")); err != nil ||
		got.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Errorf("Redis is away, on_error: allow: %v, %v", got, err)
	}
}

// The codec refuses what is no request.
func TestABrokenRequest(t *testing.T) {
	for _, broken := range []string{"\x0a", "\x0a\x05edge", "\x12\x01\x0a", "\x08\x80"} {
		text := mem.BufferSlice{mem.SliceBuffer(broken)}
		if (envoy.Codec{}).Unmarshal(text, &rlsv3.RateLimitRequest{}) == nil {
			t.Errorf("%q is a request", broken)
		}
	}
}

// sentRaw writes ? and ! as bytes that are not UTF-8.
type sentRaw struct{ encoding.CodecV2 }

func (c sentRaw) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	text := strings.NewReplacer("?", "\xe9", "!", "\xe8").Replace(string(data.Materialize()))
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

var notUTF8 = grpc.ForceCodecV2(sentRaw{encoding.GetCodecV2(proto.Name)})

// A value that cannot be counted as it is does not make the request an error, which could pass all limits.
func TestValuesOfAnyForm(t *testing.T) {
	w := newWorld(t, check.Config{Timeout: patience}, streamtest.AnyRedis(t), &windows.Rule{Name: "stuffing",
		Match: "edge/ip=*", Windows: []windows.Window{{Limit: 100, Per: time.Minute, Distinct: "user",
			ValueFrom: "login", Normalize: windows.Normalize{Trim: true, Lower: true}}}})
	client := w.dial(t, envoy.Config{})
	_, err := w.service.Check(t.Context(), api.CheckRequest{Key: "edge/ip=1",
		Values: map[string]string{"user": "Alice"}})
	testkit.Must(t, err)
	long := strings.Repeat("Ⱥ", 300) // longer in lower case
	for i, login := range []string{"alice", "", " ", long, long + "b", "a\n", "a\x00", "caf?", "caf!", "caf\uFFFD",
		"a\u200b"} {
		for range 2 {
			r := requestOf(t, "ip=1 login")
			r.Descriptors[0].Entries[1].Value = login
			resp, err := client.ShouldRateLimit(t.Context(), r, notUTF8)
			if used := w.used(t, "edge/ip=1"); err != nil || used != int64(i+1) {
				t.Fatalf("%.20q: %v, %v, used %d, want %d", login, resp, err, used, i+1)
			}
		}
	}
}
