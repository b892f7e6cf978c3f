package main

import (
	"context"
	"crypto/tls"
	"regexp"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

var grpcAt = regexp.MustCompile(`"grpc":"[^"]*:([0-9]+)"`)

// dialGRPC connects to a process's gRPC, by TLS where c is given.
func dialGRPC(t *testing.T, p *process, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	at := grpcAt.FindStringSubmatch(p.text())
	if at == nil {
		t.Fatalf("no gRPC address in\n%s", p.text())
	}
	return connect(t, "127.0.0.1:"+at[1], c)
}

// connect gives a connection to a gRPC server, by TLS where c is given.
func connect(t testing.TB, addr string, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	how := insecure.NewCredentials()
	if c != nil {
		how = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(how))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func limit(t *testing.T, conn *grpc.ClientConn, token string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "web",
		Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "a",
			Value: "b"}}}}})
	return err
}

func TestGRPCKeepsStrangersOut(t *testing.T) {
	rules, tokens := testkit.WriteFile(t, "rules.yml", devRulesText), testkit.WriteFile(t, "tokens.yml", accessTokens)
	ours, others := streamtest.NewAuthority(t), streamtest.NewAuthority(t)
	cert, key := ours.Issue("server")
	mine, mineKey := ours.Issue("client")
	base := []string{"serve", "--redis", "embedded:0", "--rules", rules, "--http", "127.0.0.1:0", "--grpc"}

	if code, _, errs := runProgram(t, "", append(base, "0.0.0.0:0")...); code != exitUsage ||
		!strings.Contains(errs, `--grpc (STREAMCOUNTER_GRPC) is "0.0.0.0:0": other machines can reach this address`) {
		t.Errorf("open: exit code %d, %s", code, errs)
	}

	p := startProgram(t, append(base, "0.0.0.0:0", "--tokens", tokens)...)
	p.until(`"msg":"ready"`)
	conn := dialGRPC(t, p, nil)
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated,
		"stranger-0123456789": codes.Unauthenticated, readerToken: codes.PermissionDenied, checkerToken: codes.OK} {
		if err := limit(t, conn, token); status.Code(err) != want {
			t.Errorf("with the token %q: %v, want %s", token, err, want)
		}
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health without a token: %v", err)
	}

	q := startProgram(t, append(base, "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ours.CA)...)
	q.until(`"msg":"ready"`)
	if err := limit(t, dialGRPC(t, q, ours.Config(mine, mineKey)), ""); err != nil {
		t.Errorf("with a client certificate: %v", err)
	}
	for name, c := range map[string]*tls.Config{"without a certificate": ours.Config("", ""),
		"with another authority": others.Config("", ""), "in plain text": nil} {
		if err := limit(t, dialGRPC(t, q, c), ""); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want no connection", name, err)
		}
	}
}
