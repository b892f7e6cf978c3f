package envoy_test

import (
	"encoding/json"
	"os"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"

	envoyconfig "github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Envoy's configuration can be decoded and validated as Envoy's own messages, and each of its descriptors matches one
// of the limits beside it.
func TestTheConfigurationsFitTogether(t *testing.T) {
	text, err := os.ReadFile("envoy.yaml")
	testkit.Must(t, err)
	var config any
	testkit.Must(t, yaml.Unmarshal(text, &config))
	asJSON, err := json.Marshal(config)
	testkit.Must(t, err)
	var bootstrap bootstrapv3.Bootstrap
	testkit.Must(t, protojson.Unmarshal(asJSON, &bootstrap))
	if err := bootstrap.ValidateAll(); err != nil {
		t.Error(err)
	}
	source, err := envoyconfig.NewSource(envoyconfig.SourceConfig{Limits: "limits",
		Options: envoyconfig.Options{Tag: "client"}})
	testkit.Must(t, err)
	limits := source.Limits()

	var manager managerv3.HttpConnectionManager
	first := bootstrap.StaticResources.Listeners[0].FilterChains[0].Filters[0]
	testkit.Must(t, first.GetTypedConfig().UnmarshalTo(&manager))
	if err := manager.ValidateAll(); err != nil {
		t.Error(err)
	}
	var filter ratelimitv3.RateLimit
	testkit.Must(t, manager.HttpFilters[0].GetTypedConfig().UnmarshalTo(&filter))
	if err := filter.ValidateAll(); err != nil {
		t.Error(err)
	}
	made := manager.GetRouteConfig().VirtualHosts[0].RateLimits
	for _, want := range []string{"edge/remote_address=v", "edge/{client=v}", "edge/{client=v}/period=day",
		"edge/{client=v}/path=%2Flogin*"} {
		limit, ok := limits.Find(filter.Domain, descriptorOf(t, made[0]))
		if made = made[1:]; !ok || limit.Key != want {
			t.Errorf("%+v, want %s", limit, want)
		}
	}
	if len(made) > 0 {
		t.Errorf("no limit was looked for for %v", made)
	}
}

// descriptorOf returns the descriptor that Envoy makes from a list of actions.
func descriptorOf(t *testing.T, made *routev3.RateLimit) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for _, a := range made.Actions {
		e := &commonv3.RateLimitDescriptor_Entry{Value: "v"}
		switch a := a.ActionSpecifier.(type) {
		case *routev3.RateLimit_Action_RemoteAddress_:
			e.Key = "remote_address"
		case *routev3.RateLimit_Action_GenericKey_:
			e.Key, e.Value = a.GenericKey.DescriptorKey, a.GenericKey.DescriptorValue
		case *routev3.RateLimit_Action_RequestHeaders_:
			if e.Key = a.RequestHeaders.DescriptorKey; a.RequestHeaders.HeaderName == ":path" {
				e.Value = "/login?next=/"
			}
		default:
			t.Fatalf("action %T", a)
		}
		d.Entries = append(d.Entries, e)
	}
	return d
}
