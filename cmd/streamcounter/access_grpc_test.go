package main

import (
	"context"
	"crypto/tls"
	"regexp"
	"slices"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

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

// descriptor returns a descriptor of these entries: key, value and so on.
func descriptor(pairs ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for pair := range slices.Chunk(pairs, 2) {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]})
	}
	return d
}

func askLimit(ctx context.Context, conn *grpc.ClientConn, domain string, pairs ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{descriptor(pairs...)}})
	return err
}

func limit(t *testing.T, conn *grpc.ClientConn, token string) error {
	t.Helper()
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return askLimit(ctx, conn, "web", "a", "b")
}
