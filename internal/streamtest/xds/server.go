// Package xds is a control plane for tests: go-control-plane's own cache and server, as Envoy Gateway runs them. Its
// port stays the same when it stops and starts again.
package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Node is the id of the node for which the server has limits; it is Envoy Gateway's.
const Node = "envoy-ratelimit"

// Server has the limits of one node.
type Server struct {
	Addr  string
	t     testing.TB
	tls   *tls.Config
	cache cache.SnapshotCache
	grpc  *grpc.Server // nil: it is stopped

	mu    sync.Mutex
	asked []*discovery.DiscoveryRequest
}

// New returns a server that is stopped until Start; tls may be nil.
func New(t testing.TB, tls *tls.Config) *Server {
	t.Helper()
	s := &Server{t: t, tls: tls, Addr: fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)),
		cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	t.Cleanup(s.Stop)
	return s
}

// SetTLS sets the TLS configuration for the next Start.
func (s *Server) SetTLS(c *tls.Config) { s.tls = c }

// Start makes the server listen.
func (s *Server) Start() {
	s.t.Helper()
	var options []grpc.ServerOption
	if s.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.tls)))
	}
	l, err := net.Listen("tcp", s.Addr)
	testkit.Must(s.t, err)
	s.grpc = grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(s.grpc, server.NewServer(context.Background(), s.cache,
		server.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked = append(s.asked, r)
			return nil
		}}))
	go func(g *grpc.Server) { _ = g.Serve(l) }(s.grpc)
}

// Stop cuts all streams.
func (s *Server) Stop() {
	if s.grpc != nil {
		s.grpc.Stop()
		s.grpc = nil
	}
}

// Set puts other limits in force, under a version.
func (s *Server) Set(version string, list ...*rlsconf.RateLimitConfig) {
	s.t.Helper()
	resources := make([]types.Resource, len(list))
	for i, r := range list {
		resources[i] = r
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: resources})
	testkit.Must(s.t, err)
	testkit.Must(s.t, s.cache.SetSnapshot(context.Background(), Node, snapshot))
}

// Acked waits until the client has accepted a version.
func (s *Server) Acked(version string) {
	s.t.Helper()
	s.until("an ACK of version "+version, func(r *discovery.DiscoveryRequest) bool {
		return r.VersionInfo == version && r.ErrorDetail == nil && r.ResponseNonce != ""
	})
}

// Nacked waits until the client has refused something while a version is in force, and returns the reason.
func (s *Server) Nacked(inForce string) string {
	s.t.Helper()
	return s.until("a NACK over version "+inForce, func(r *discovery.DiscoveryRequest) bool {
		return r.VersionInfo == inForce && r.ErrorDetail != nil
	}).ErrorDetail.Message
}

// until waits for a request of the client, the latest first.
func (s *Server) until(what string, fits func(*discovery.DiscoveryRequest) bool) (found *discovery.DiscoveryRequest) {
	s.t.Helper()
	streamtest.Eventually(s.t, what, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := len(s.asked) - 1; i >= 0 && found == nil; i-- {
			if fits(s.asked[i]) {
				found = s.asked[i]
			}
		}
		return found != nil, fmt.Sprintf("%d requests", len(s.asked))
	})
	return found
}

// Streams returns how often the client has started a stream.
func (s *Server) Streams() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.asked {
		if r.ResponseNonce == "" {
			n++
		}
	}
	return n
}
