package main

import (
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/internal/streamtest/xds"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// quota returns a leaf as Envoy AI Gateway makes it from a bucket of a QuotaPolicy; quota_mode is field 7.
func quota(key string, tokens uint32) *rlsconf.RateLimitDescriptor {
	d := &rlsconf.RateLimitDescriptor{Key: key, Value: key, RateLimit: &rlsconf.RateLimitPolicy{RequestsPerUnit: tokens,
		Unit: rlsconf.RateLimitUnit_HOUR}}
	d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1))
	return d
}

// The buckets of a model: one for each of two tenants, and the default bucket.
const acme, globex, bucket = "rule-0-x-tenant-id|acme-match-0", "rule-1-x-tenant-id|globex-match-0", "rule-2-match--1"

// aiGateway returns a QuotaPolicy's limits for two models of one backend.
func aiGateway() *rlsconf.RateLimitConfig {
	model := func(name string) *rlsconf.RateLimitDescriptor {
		return &rlsconf.RateLimitDescriptor{Key: "model_name_override", Value: name,
			Descriptors: []*rlsconf.RateLimitDescriptor{quota(acme, 100), quota(globex, 100), quota(bucket, 10_000)}}
	}
	return &rlsconf.RateLimitConfig{Name: "ai-gateway-quota", Domain: "ai-gateway-quota",
		Descriptors: []*rlsconf.RateLimitDescriptor{{Key: "backend_name", Value: "default/openai",
			Descriptors: []*rlsconf.RateLimitDescriptor{model("gpt-4"), model("gpt-4-mini")}}}}
}

// aiRequest returns what the gateway's Envoy sends for a tenant. Before the request it is a hit in each bucket of
// each model of the route. When the answer is complete, it is the tokens, in the buckets of the model that answered.
func aiRequest(tenant string, tokens uint64, models ...string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: "ai-gateway-quota"}
	for _, model := range models {
		for _, last := range []string{tenant, bucket} {
			d := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{
				{Key: "backend_name", Value: "default/openai"}, {Key: "model_name_override", Value: model},
				{Key: last, Value: last}}}
			if tokens > 0 {
				d.HitsAddend = wrapperspb.UInt64(tokens)
			}
			r.Descriptors = append(r.Descriptors, d)
		}
	}
	return r
}

// Two tenants under a QuotaPolicy: the one that has used its tokens is denied, the other is not. If the route has
// another model with tokens left, the request passes, and the answer names that model.
func TestEnvoyAIGateway(t *testing.T) {
	plane := xds.New(t, nil)
	plane.Set("1", aiGateway())
	plane.Start()
	r := startRateLimit(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": plane.Addr,
		"CONFIG_GRPC_XDS_NODE_ID": xds.Node})
	client := r.client(nil)
	ask := func(request *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
		t.Helper()
		resp, err := client.ShouldRateLimit(t.Context(), request)
		testkit.Must(t, err)
		return resp
	}
	want := func(step, tenant string, code rlsv3.RateLimitResponse_Code, models ...string) *rlsv3.RateLimitResponse {
		t.Helper()
		resp := ask(aiRequest(tenant, 0, models...))
		if resp.OverallCode != code {
			t.Errorf("%s: %v, want %s", step, resp, code)
		}
		return resp
	}
	const ok, over = rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT
	want("before any tokens", acme, ok, "gpt-4")
	ask(aiRequest(acme, 250, "gpt-4")) // more than the quota: the tokens were used already
	resp := want("after 250 tokens of 100", acme, over, "gpt-4")
	if resp.Statuses[0].Code != over || resp.Statuses[1].Code != ok || resp.Statuses[1].LimitRemaining != 10_000-252 {
		t.Errorf("the tenant's bucket and the default one: %v", resp.Statuses)
	}
	want("the other tenant", globex, ok, "gpt-4")
	resp = want("another model has some left", acme, ok, "gpt-4", "gpt-4-mini")
	backends := resp.DynamicMetadata.GetFields()["passedBackends"].GetListValue().AsSlice()
	if len(backends) != 1 || backends[0].(map[string]any)["model_name_override"] != "gpt-4-mini" {
		t.Errorf("passed backends: %v", backends)
	}
	ask(aiRequest(acme, 250, "gpt-4-mini"))
	want("no model has any left", acme, over, "gpt-4", "gpt-4-mini")
	want("the other tenant, of both", globex, ok, "gpt-4", "gpt-4-mini")
}
