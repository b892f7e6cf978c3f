package main

import (
	"context"
	"crypto/tls"
	"regexp"
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

	"github.com/streamcounter/streamcounter/internal/testkit"
)

var grpcAt = regexp.MustCompile(`"grpc":"[^"]*:([0-9]+)"`)

// dialGRPC connects to the gRPC address of a process, with TLS if c is not nil.
func dialGRPC(t *testing.T, p *process, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	at := grpcAt.FindStringSubmatch(p.text())
	if at == nil {
		t.Fatalf("no gRPC address in\n%s", p.text())
	}
	return connect(t, "127.0.0.1:"+at[1], c)
}

// connect returns a connection to a gRPC server, with TLS if c is not nil.
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

// wantGRPCTokens checks the rate limit service with the tokens of accessTokens.
func wantGRPCTokens(t *testing.T, p *process) {
	t.Helper()
	conn := dialGRPC(t, p, nil)
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, readerToken: codes.PermissionDenied,
		checkerToken: codes.OK} {
		if err := limit(t, conn, token); status.Code(err) != want {
			t.Errorf("gRPC with the token %q: %v, want %s", token, err, want)
		}
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health without a token: %v", err)
	}
}
