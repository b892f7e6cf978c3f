package target_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/bench/target"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers like serve: of three checks one is admitted, one is denied, and one is decided by on_error. Its
// process has used one more second of CPU each time that its metrics are read.
type server struct {
	rlsv3.UnimplementedRateLimitServiceServer
	checks, reads atomic.Int64
	token         string // what callers must send; empty: nothing
	broken        atomic.Bool
}

// answers are those to every third check, in turn.
var answers = []string{`{"allowed":false,"source":"redis"}`, `{"allowed":true,"source":"redis"}`,
	`{"allowed":true,"source":"policy"}`}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/metrics":
		fmt.Fprintf(w, "# HELP process_cpu_seconds_total CPU.\nprocess_cpu_seconds_total %d\n", s.reads.Add(1))
	case s.broken.Load():
		w.WriteHeader(http.StatusInternalServerError)
	case r.Method == http.MethodGet:
		n := s.checks.Add(1)
		if n%3 == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = io.WriteString(w, answers[n%3])
	default:
		var body struct {
			Checks []struct{ Key string }
			Each   bool
		}
		text, _ := io.ReadAll(r.Body)
		if json.Unmarshal(text, &body) != nil || !body.Each {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		list := []string{}
		for range body.Checks {
			list = append(list, answers[s.checks.Add(1)%3])
		}
		fmt.Fprintf(w, `{"checks":[%s]}`, strings.Join(list, ","))
	}
}

func (s *server) ShouldRateLimit(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	if token := metadata.ValueFromIncomingContext(ctx, "authorization"); s.token != "" &&
		(len(token) != 1 || token[0] != "Bearer "+s.token) {
		return nil, status.Error(codes.Unauthenticated, "who is it")
	}
	out := &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}
	n := s.checks.Add(int64(len(r.Descriptors))) / int64(len(r.Descriptors)) % 3
	if n == 0 {
		out.OverallCode = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	for range r.Descriptors {
		status := &rlsv3.RateLimitResponse_DescriptorStatus{Code: out.OverallCode}
		if n < 2 {
			status.CurrentLimit = &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 1}
		}
		out.Statuses = append(out.Statuses, status)
	}
	return out, nil
}

// start returns the server's addresses.
func (s *server) start(t *testing.T) (httpURL, grpcURL string) {
	t.Helper()
	h := httptest.NewServer(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	g := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		h.Close()
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return h.URL, "grpc://" + l.Addr().String()
}

func TestRun(t *testing.T) {
	for _, perCall := range []int{1, 5} {
		for _, scheme := range []string{"http", "grpc"} {
			t.Run(fmt.Sprintf("%s/%d", scheme, perCall), func(t *testing.T) {
				s := &server{token: "secret"}
				overHTTP, overGRPC := s.start(t)
				c := target.Config{URL: overHTTP, Metrics: overHTTP + "/metrics", Token: "secret", Callers: 3,
					PerCall: perCall, Keys: measure.Keys{N: 1000}, Duration: 100 * time.Millisecond}
				if scheme == "grpc" {
					c.URL = overGRPC
				}
				r, err := target.Run(t.Context(), c)
				testkit.Must(t, err)
				if third := r.Checks / 3; max(third-r.OnError, r.OnError-third, third-r.Admitted, r.Admitted-third) >
					int64(perCall*c.Callers) {
					t.Errorf("%d of %d checks admitted, %d by on_error: want a third each", r.Admitted, r.Checks,
						r.OnError)
				}
				if r.Errors != 0 || r.Calls < 1 || r.Checks != r.Calls*int64(perCall) || r.Admitted < 1 ||
					r.Admitted >= r.Checks || r.P50Us < 1 || r.P99Us < r.P50Us {
					t.Errorf("%+v", r)
				}
				// Each reading of the metrics is a second later.
				if want := 1e6 / float64(r.Checks); r.ServerCPUUs == nil || *r.ServerCPUUs != want ||
					r.RedisCPUUs != nil {
					t.Errorf("CPU per check %v, want %v", r.ServerCPUUs, want)
				}
				var text strings.Builder
				if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "Redis unknown") ||
					!strings.Contains(text.String(), fmt.Sprintf("%d checks a call", perCall)) {
					t.Errorf("%v: %s", err, text.String())
				}
			})
		}
	}
}

func TestRunSaysWhatFailed(t *testing.T) {
	s := &server{token: "secret"}
	url, _ := s.start(t)
	redirects := httptest.NewServer(http.RedirectHandler(url, http.StatusTemporaryRedirect))
	defer redirects.Close()
	s.broken.Store(true)
	for _, c := range []struct{ url, token, want string }{
		{url, "secret", "status 500"}, {redirects.URL, "secret", "status 307"}, {url, "another", "status 401"},
	} {
		if _, err := target.Run(t.Context(), target.Config{URL: c.url, Callers: 1, Token: c.token}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	good := target.Config{URL: url, Callers: 1, PerCall: 1, Keys: measure.Keys{N: 1}, Duration: time.Second}
	testkit.Must(t, good.Validate())
	for _, change := range []func(*target.Config){
		func(c *target.Config) { c.URL = "localhost:80" },
		func(c *target.Config) { c.URL = "redis://127.0.0.1" },
		func(c *target.Config) { c.Metrics = "here" },
		func(c *target.Config) { c.PerCall = 101 },
		func(c *target.Config) { c.Callers = 0 },
		func(c *target.Config) { c.Keys.N = 0 },
		func(c *target.Config) { c.Duration = 0 },
		func(c *target.Config) { c.Keys.S = 0.5 },
	} {
		bad := good
		if change(&bad); bad.Validate() == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}
