package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	scgrpc "github.com/streamcounter/streamcounter/client/grpc"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Each answer in testdata/foreign is asked for once.
func TestHTTPAnswersThatAreNotOurs(t *testing.T) {
	bodies := strings.NewReplacer("SPACES", strings.Repeat(" ", 2<<20))
	testkit.StoriesIn(t, "testdata/foreign", func(t *testing.T, _, _ string, steps []string) []string {
		return testkit.Steps(steps, "> ", func(step string) []string {
			words := append(strings.SplitN(step, " ", 3), "")
			status, err := strconv.Atoi(words[1])
			testkit.Must(t, err)
			h, asked := answering(t, status, bodies.Replace(words[2]))
			answer := foreignAnswer(t, h, words[0])
			if *asked != 1 {
				t.Errorf("%s: asked %d times", step, *asked)
			}
			return []string{answer}
		})
	})
}

// foreignAnswer returns the answer to a call about the key k, or the outcome of its error.
func foreignAnswer(t *testing.T, h *client.HTTP, call string) string {
	switch call {
	case "lease", "renew-lease":
		req := api.LeaseRequest{Key: "k", Want: 5}
		if call == "renew-lease" {
			req.ID, req.Had, req.Keep = "a-1", 9, 9
		}
		a, err := h.Lease(t.Context(), req)
		return fmt.Sprintf("a lease of %d%s", a.Units, errorText(err))
	case "check":
		return answerText(h.Check(t.Context(), api.CheckRequest{Key: "k"}))
	}
	return outcome(ask(t.Context(), h, call, api.CheckRequest{Key: "k"}))
}

// A call that only looks may be sent again. If one of its checks charges, the call may have charged.
func TestOnlyLooksHaveNoUnknownOutcome(t *testing.T) {
	unavailable := serveRLS(t, shouldRateLimit(func(context.Context) error {
		return status.Error(codes.Unavailable, "as the test wants it")
	}))
	look := api.CheckRequest{Key: "k", Mode: api.ModeLook}
	badGateway, _ := answering(t, 502, "<html>")
	for _, c := range []client.Checker{badGateway, overGRPC(t, unavailable)} {
		for _, kind := range []string{"peek", "check", "all", "each"} {
			if err := ask(t.Context(), c, kind, look, look); outcome(err) != wasNotSent {
				t.Errorf("%T, %s: %v, want that nothing was charged", c, kind, err)
			}
		}
		if err := ask(t.Context(), c, "all", look, api.CheckRequest{Key: "l"}); outcome(err) != wasLost {
			t.Errorf("%T: %v, want that the outcome is unknown", c, err)
		}
	}
}

// answering returns a client of a server that has one answer, and how often it was asked.
func answering(t *testing.T, status int, body string) (*client.HTTP, *int) {
	asked := new(int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		*asked++
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return overHTTP(t, s.Listener.Addr().String()), asked
}

func TestHTTPRefusesURLs(t *testing.T) {
	for _, base := range []string{"", "localhost:8080", "redis://h", "http://", "http://h?x=1",
		"http://user:sesame@h", "://sesame@h", "http://u:sesame@h:99999999"} {
		if _, err := client.NewHTTP(base, client.HTTPConfig{}); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: %v, want a refusal without the password", base, err)
		}
	}
}

// Each request carries a token: the one that is current at that moment. A token that cannot be sent is a wrong one.
func TestTokens(t *testing.T) {
	token := "first"
	var got []string
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(`{"allowed":true,"key":"k","source":"redis"}`))
	}))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	secure := &tls.Config{RootCAs: roots, ServerName: "example.com"}
	h, err := client.NewHTTP("https://"+s.Listener.Addr().String(),
		client.HTTPConfig{Token: func() string { return token }, TLS: secure})
	testkit.Must(t, err)
	defer h.Close()

	addr := serveRLS(t, shouldRateLimit(func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		got = append(got, md.Get("authorization")...)
		return nil
	}), grpc.Creds(credentials.NewServerTLSFromCert(&s.TLS.Certificates[0])))
	c, err := scgrpc.New("passthrough:///"+addr, scgrpc.Config{Token: func() string { return token }, TLS: secure})
	testkit.Must(t, err)
	defer c.Close()

	for _, checker := range []client.Checker{h, c} {
		_, err := checker.Check(t.Context(), api.CheckRequest{Key: "k"})
		testkit.Must(t, err)
		token = "second"
	}
	if strings.Join(got, " ") != "Bearer first Bearer second" {
		t.Errorf("sent %q", got)
	}
	for _, token = range []string{"hunter2\n", "hunter2\x7f", "hunter2é"} { // it cannot be a header, so it is wrong
		for _, checker := range []client.Checker{h, c} {
			err := ask(t.Context(), checker, "check", api.CheckRequest{Key: "k"})
			if outcome(err) != "unauthenticated" || strings.Contains(err.Error(), "hunter") {
				t.Errorf("token %q: %v, want an error that does not show it", token, err)
			}
		}
	}
}

type shouldRateLimit func(ctx context.Context) error

func (s shouldRateLimit) ShouldRateLimit(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse,
	error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK,
		Statuses: make([]*rls.RateLimitResponse_DescriptorStatus, len(req.Descriptors))}, s(ctx)
}

// answersRLS is a server of Envoy's service that has one answer.
type answersRLS rls.RateLimitResponse

func (a *answersRLS) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return (*rls.RateLimitResponse)(a), nil
}

// The client refuses an answer whose wait is too long for a time.Duration. If it cannot read the detail of an answer,
// it uses the statuses.
func TestGRPCAnswersThatAreNotOurs(t *testing.T) {
	over := rls.RateLimitResponse_OVER_LIMIT
	for _, c := range []struct {
		detail string // of the key k
		reset  time.Duration
		want   string // the wait in ms and the source, or the outcome
	}{
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":2000}`, time.Second, "2000 redis"},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":-1}`, time.Second, "-1 redis"},
		{`{"key":"k","rule":"r","retry_after_ms":2000}`, time.Second, wasLost},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":-2}`, time.Second, wasLost},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":9e18}`, time.Second, wasLost},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":"soon"}`, time.Second, "1000 "},
		{"", time.Second, "1000 "},
		{"", -time.Second, "0 "},
	} {
		answer := &answersRLS{OverallCode: over, Statuses: []*rls.RateLimitResponse_DescriptorStatus{{Code: over,
			CurrentLimit:       &rls.RateLimitResponse_RateLimit{Name: "r", RequestsPerUnit: 10},
			DurationUntilReset: durationpb.New(c.reset)}}}
		if c.detail != "" {
			answer.DynamicMetadata = &structpb.Struct{}
			testkit.Must(t, answer.DynamicMetadata.UnmarshalJSON([]byte(`{"streamcounter":{"checks":[`+c.detail+`]}}`)))
		}
		a, err := overGRPC(t, serveRLS(t, answer)).Check(t.Context(), api.CheckRequest{Key: "k"})
		got := outcome(err)
		if err == nil {
			got = fmt.Sprint(a.RetryAfterMs, " ", a.Source)
		}
		if got != c.want {
			t.Errorf("%s, %s: %+v, %v, want %s", c.detail, c.reset, a, err, c.want)
		}
	}
}

// Statuses without our detail, of proxies and later servers.
func TestGRPCErrorsThatAreNotOurs(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.Unauthenticated: "unauthenticated", codes.PermissionDenied: "forbidden", codes.Unimplemented: "no answer",
		codes.Unavailable: wasLost, codes.DeadlineExceeded: wasLost, codes.Internal: wasLost, // it was sent
	} {
		asked := 0
		addr := serveRLS(t, shouldRateLimit(func(context.Context) error {
			asked++
			return status.Error(code, "as the test wants it")
		}))
		err := ask(t.Context(), overGRPC(t, addr), "check", api.CheckRequest{Key: "k"})
		if outcome(err) != want || asked != 1 {
			t.Errorf("%s: asked %d times, %v, want %s", code, asked, err, want)
		}
	}
}
