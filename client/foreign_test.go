package client_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// Other programs may be at the other end of HTTP: proxies, other servers, later servers.
func TestHTTPAnswersThatAreNotOurs(t *testing.T) {
	problem := func(name string) string {
		return fmt.Sprintf(`{"type":"urn:streamcounter:%s","title":"x","status":400,"detail":"it says so"}`, name)
	}
	for _, c := range []struct {
		status int
		body   string
		want   []error
		not    error
	}{
		{401, problem("unauthenticated"), []error{api.ErrUnauthenticated}, api.ErrNoAnswer},
		{403, problem("forbidden"), []error{api.ErrForbidden}, api.ErrNoAnswer},
		{401, "<html>", []error{api.ErrUnauthenticated}, nil},
		{403, "<html>", []error{api.ErrForbidden}, nil},
		{503, problem("unavailable"), []error{api.ErrUnavailable}, api.ErrNoAnswer},
		{503, problem("outcome-unknown"), []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{502, "<html>bad gateway</html>", []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{503, "", []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{500, problem("of-a-later-version"), []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{429, "slow down", []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{404, "<html>", []error{api.ErrNoAnswer}, api.ErrOutcomeUnknown},
		{302, "", []error{api.ErrNoAnswer}, nil},
		{200, "<html>", []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
		{200, strings.Repeat(" ", 2<<20), []error{api.ErrOutcomeUnknown, api.ErrNoAnswer}, api.ErrNotSent},
	} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		h := overHTTP(t, s.Listener.Addr().String())
		_, err := h.Check(t.Context(), api.CheckRequest{Key: "k"})
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%d %.40s: %v, want %v", c.status, c.body, err, want)
			}
		}
		if c.not != nil && errors.Is(err, c.not) {
			t.Errorf("%d %.40s: %v, want it not to be %v", c.status, c.body, err, c.not)
		}
		if asked != 1 {
			t.Errorf("%d %.40s: asked %d times", c.status, c.body, asked)
		}
		if _, err := h.Peek(t.Context(), "k"); errors.Is(err, api.ErrOutcomeUnknown) &&
			!strings.Contains(c.body, "outcome-unknown") {
			t.Errorf("%d: a look has no unknown outcome: %v", c.status, err)
		}
		s.Close()
	}
}

// A body that is no answer to the request is no decision: the policy decides, as without an answer.
func TestHTTPBodiesThatAnswerNothing(t *testing.T) {
	const over = `"type":"urn:streamcounter:over-limit",`
	for _, c := range []struct {
		status     int
		body       string
		isDecision bool
	}{
		{200, `{"allowed":true,"key":"k","source":"redis"}`, true},
		{429, `{` + over + `"key":"k","source":"redis","retry_after_ms":-1}`, true},
		{200, `{}`, false}, {200, `null`, false},
		{200, `{"allowed":true,"source":"redis"}`, false},
		{200, `{"allowed":true,"key":"other","source":"redis"}`, false},
		{200, `{"allowed":true,"key":"k"}`, false},
		{200, `{"allowed":false,"key":"k","source":"redis"}`, false},
		{429, `{` + over + `"allowed":true,"key":"k","source":"redis"}`, false},
		{429, `{` + over + `"key":"other","source":"redis"}`, false},
		{429, `{` + over + `"key":"k","source":"redis","retry_after_ms":-9223372036854775808}`, false},
		{429, `{` + over + `"key":"k","source":"redis","retry_after_ms":9223372036854775807}`, false},
	} {
		h := answering(t, c.status, c.body)
		a, err := h.Check(t.Context(), api.CheckRequest{Key: "k"})
		if c.isDecision != (err == nil) || !c.isDecision && (!errors.Is(err, api.ErrNoAnswer) || a.Key != "") {
			t.Errorf("%d %s: %+v, %v, want a decision: %t", c.status, c.body, a, err, c.isDecision)
		}
		if !c.isDecision {
			allowed, err := newClient(t, h, client.Config{}).Check(t.Context(), api.CheckRequest{Key: "k"})
			if err != nil || !allowed.Allowed || allowed.Source != api.SourcePolicy {
				t.Errorf("%d %s: %+v, %v, want the policy's answer", c.status, c.body, allowed, err)
			}
		}
	}
	req := api.CheckRequest{Key: "k"}
	for _, c := range []struct {
		body string
		ask  func(h *client.HTTP) error
	}{
		{`{"allowed":true,"checks":[{"key":"other","source":"redis"}]}`, func(h *client.HTTP) error {
			_, err := h.CheckAll(t.Context(), []api.CheckRequest{req})
			return err
		}},
		{`{"checks":[{}]}`, func(h *client.HTTP) error {
			each, err := h.CheckEach(t.Context(), []api.CheckRequest{req})
			return cmp.Or(err, each[0].Err)
		}},
		{`{}`, func(h *client.HTTP) error {
			_, err := h.Peek(t.Context(), "k")
			return err
		}},
		{`{"id":"a-1","allowed":true,"checks":[{"key":"other","source":"redis"}]}`, func(h *client.HTTP) error {
			_, err := h.Reserve(t.Context(), api.ReservationRequest{CheckRequest: req})
			return err
		}},
		{`{"id":"a-2","state":"committed"}`, func(h *client.HTTP) error {
			_, err := h.Commit(t.Context(), "a-1", api.CommitRequest{})
			return err
		}},
	} {
		if err := c.ask(answering(t, 200, c.body)); !errors.Is(err, api.ErrNoAnswer) {
			t.Errorf("%s: %v, want no answer", c.body, err)
		}
	}
}

// answering returns a client of a server that has one answer.
func answering(t *testing.T, status int, body string) *client.HTTP {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return overHTTP(t, s.Listener.Addr().String())
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
			_, err := checker.Check(t.Context(), api.CheckRequest{Key: "k"})
			if !errors.Is(err, api.ErrUnauthenticated) || errors.Is(err, api.ErrNoAnswer) ||
				strings.Contains(err.Error(), "hunter") {
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
		waitMs int64 // -2: it is no answer
		source api.Source
	}{
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":2000}`, time.Second, 2000, api.SourceRedis},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":-1}`, time.Second, -1, api.SourceRedis},
		{`{"key":"k","rule":"r","retry_after_ms":2000}`, time.Second, -2, ""},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":-2}`, time.Second, -2, ""},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":9e18}`, time.Second, -2, ""},
		{`{"key":"k","rule":"r","source":"redis","retry_after_ms":"soon"}`, time.Second, 1000, ""},
		{"", time.Second, 1000, ""},
		{"", -time.Second, 0, ""},
	} {
		answer := &answersRLS{OverallCode: over, Statuses: []*rls.RateLimitResponse_DescriptorStatus{{Code: over,
			CurrentLimit:       &rls.RateLimitResponse_RateLimit{Name: "r", RequestsPerUnit: 10},
			DurationUntilReset: durationpb.New(c.reset)}}}
		if c.detail != "" {
			answer.DynamicMetadata = &structpb.Struct{}
			testkit.Must(t, answer.DynamicMetadata.UnmarshalJSON([]byte(`{"streamcounter":{"checks":[`+c.detail+`]}}`)))
		}
		a, err := overGRPC(t, serveRLS(t, answer)).Check(t.Context(), api.CheckRequest{Key: "k"})
		if c.waitMs < -1 {
			if !errors.Is(err, api.ErrOutcomeUnknown) {
				t.Errorf("%s, %s: %+v, %v, want no answer", c.detail, c.reset, a, err)
			}
		} else if err != nil || a.RetryAfterMs != c.waitMs || a.Source != c.source {
			t.Errorf("%s, %s: %+v, %v, want a wait of %d ms from %q", c.detail, c.reset, a, err, c.waitMs, c.source)
		}
	}
}

// Statuses without our detail, of proxies and later servers.
func TestGRPCErrorsThatAreNotOurs(t *testing.T) {
	for code, want := range map[codes.Code][]error{
		codes.Unauthenticated:  {api.ErrUnauthenticated},
		codes.PermissionDenied: {api.ErrForbidden},
		codes.Unimplemented:    {api.ErrNoAnswer},
		codes.Unavailable:      {api.ErrNoAnswer, api.ErrOutcomeUnknown}, // it was sent
		codes.DeadlineExceeded: {api.ErrNoAnswer, api.ErrOutcomeUnknown},
		codes.Internal:         {api.ErrNoAnswer, api.ErrOutcomeUnknown},
	} {
		asked := 0
		addr := serveRLS(t, shouldRateLimit(func(context.Context) error {
			asked++
			return status.Error(code, "as the test wants it")
		}))
		_, err := overGRPC(t, addr).Check(t.Context(), api.CheckRequest{Key: "k"})
		for _, w := range want {
			if !errors.Is(err, w) {
				t.Errorf("%s: %v, want %v", code, err, w)
			}
		}
		if asked != 1 || errors.Is(err, api.ErrNotSent) {
			t.Errorf("%s: asked %d times, %v", code, asked, err)
		}
	}
}
