package partners

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// envoy is the part of an Envoy that calls a rate limit service: it gets listeners and routes from Envoy Gateway, as
// Envoy does, and makes from a request the calls of the rate limit filters of its route.
type envoy struct {
	t       testing.TB
	gateway discoveryv3.AggregatedDiscoveryServiceClient
	node    *corev3.Node
}

// httpRequest is the part of a request that the actions of a rate limit read.
type httpRequest struct {
	method, path, address string
	headers               map[string]string
}

// newEnvoy connects to Envoy Gateway as the Envoy of a Gateway.
func newEnvoy(t testing.TB, addr, gateway, certs string) *envoy {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(
		credentials.NewTLS(clientTLS(t, certs, "envoy-gateway"))))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &envoy{t: t, gateway: discoveryv3.NewAggregatedDiscoveryServiceClient(conn),
		node: &corev3.Node{Id: "envoy-of-the-test", Cluster: gateway}}
}

// clientTLS returns a configuration with the certificate in a directory, which expects the server to be called name.
func clientTLS(t testing.TB, dir, name string) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	testkit.Must(t, err)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	testkit.Must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ServerName: name}
}

// routes returns the routes that Envoy Gateway serves now, by their names.
func (e *envoy) routes() (map[string]*routev3.Route, error) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Second)
	defer cancel()
	stream, err := e.gateway.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	fetch := func(kind string, names ...string) ([]*anypb.Any, error) {
		request := &discoveryv3.DiscoveryRequest{Node: e.node, TypeUrl: kind, ResourceNames: names}
		if err := stream.Send(request); err != nil {
			return nil, err
		}
		answer, err := stream.Recv() // there is one answer, to the one request
		return answer.GetResources(), err
	}
	listeners, err := fetch("type.googleapis.com/envoy.config.listener.v3.Listener")
	if err != nil {
		return nil, err
	}
	configs, err := fetch("type.googleapis.com/envoy.config.route.v3.RouteConfiguration", e.routeConfigs(listeners)...)
	routes := map[string]*routev3.Route{}
	for _, r := range configs {
		var config routev3.RouteConfiguration
		testkit.Must(e.t, r.UnmarshalTo(&config))
		for _, host := range config.VirtualHosts {
			for _, route := range host.Routes {
				routes[route.Name] = route
			}
		}
	}
	return routes, err
}

// routeConfigs returns the names of the route configurations that the listeners use.
func (e *envoy) routeConfigs(listeners []*anypb.Any) (names []string) {
	e.t.Helper()
	for _, r := range listeners {
		var listener listenerv3.Listener
		testkit.Must(e.t, r.UnmarshalTo(&listener))
		for _, chain := range append(listener.FilterChains, listener.DefaultFilterChain) {
			for _, filter := range chain.GetFilters() {
				var manager managerv3.HttpConnectionManager
				if filter.GetTypedConfig().MessageIs(&manager) {
					testkit.Must(e.t, filter.GetTypedConfig().UnmarshalTo(&manager))
					names = append(names, manager.GetRds().GetRouteConfigName())
				}
			}
		}
	}
	return names
}

// asks returns the calls of a route's rate limit filters, one for each domain.
func (e *envoy) asks(route *routev3.Route, r httpRequest) (calls []*rlsv3.RateLimitRequest) {
	e.t.Helper()
	for name, config := range route.TypedPerFilterConfig {
		if !strings.HasPrefix(name, "envoy.filters.http.ratelimit") {
			continue
		}
		var own ratelimitv3.RateLimitPerRoute
		testkit.Must(e.t, config.UnmarshalTo(&own))
		call := &rlsv3.RateLimitRequest{Domain: own.Domain}
		for _, limit := range own.RateLimits {
			if d := e.descriptor(limit, r); d != nil {
				call.Descriptors = append(call.Descriptors, d)
			}
		}
		if len(call.Descriptors) > 0 {
			calls = append(calls, call)
		}
	}
	return calls
}

// descriptor returns what the actions of a limit make from a request, or nil if one of them does not apply.
func (e *envoy) descriptor(limit *routev3.RateLimit, r httpRequest) *commonv3.RateLimitDescriptor {
	e.t.Helper()
	d := &commonv3.RateLimitDescriptor{}
	for _, action := range limit.Actions {
		var key, value string
		applies := true
		switch a := action.ActionSpecifier.(type) {
		case *routev3.RateLimit_Action_GenericKey_:
			key, value = a.GenericKey.DescriptorKey, a.GenericKey.DescriptorValue
		case *routev3.RateLimit_Action_RequestHeaders_:
			key = a.RequestHeaders.DescriptorKey
			value, applies = r.header(a.RequestHeaders.HeaderName)
		case *routev3.RateLimit_Action_HeaderValueMatch_:
			key, value = a.HeaderValueMatch.DescriptorKey, a.HeaderValueMatch.DescriptorValue
			applies = e.matches(a.HeaderValueMatch.Headers, r) == a.HeaderValueMatch.ExpectMatch.GetValue()
		case *routev3.RateLimit_Action_RemoteAddressMatch_:
			m := a.RemoteAddressMatch
			key = m.DescriptorKey
			value = strings.ReplaceAll(m.DescriptorValue, "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", r.address)
			within := false
			for _, cidr := range m.AddressMatcher.Ranges {
				network, err := netip.ParseAddr(cidr.AddressPrefix)
				testkit.Must(e.t, err)
				within = within || netip.PrefixFrom(network, int(cidr.PrefixLen.GetValue())).
					Contains(netip.MustParseAddr(r.address))
			}
			applies = within != m.AddressMatcher.InvertMatch
		default:
			e.t.Fatalf("action %T", a)
		}
		if !applies {
			return nil
		}
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func (r httpRequest) header(name string) (string, bool) {
	switch name {
	case ":method":
		return r.method, true
	case ":path":
		return r.path, true
	}
	value, ok := r.headers[strings.ToLower(name)]
	return value, ok
}

// matches reports whether a request has all headers.
func (e *envoy) matches(headers []*routev3.HeaderMatcher, r httpRequest) bool {
	for _, h := range headers {
		value, ok := r.header(h.Name)
		if !ok {
			return false
		}
		m := h.GetStringMatch()
		switch {
		case m.GetExact() != "":
			ok = value == m.GetExact()
		case m.GetPrefix() != "":
			ok = strings.HasPrefix(value, m.GetPrefix())
		case m.GetSafeRegex() != nil:
			ok = regexp.MustCompile("^(?:" + m.GetSafeRegex().Regex + ")$").MatchString(value)
		default:
			e.t.Fatalf("header matcher %v", h)
		}
		if ok == h.InvertMatch {
			return false
		}
	}
	return true
}
