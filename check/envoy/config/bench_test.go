package config

import (
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

func BenchmarkFind(b *testing.B) {
	l := load(b, "testdata/working", Tag("client"))
	for _, c := range []struct {
		name, domain string
		d            *commonv3.RateLimitDescriptor
	}{
		{"exact", "edge", descriptorOf("source_cluster=proxy destination_cluster=backend")},
		{"any", "edge", descriptorOf("client=198.51.100.17 plan=gold")},
		{"pattern", "paths", descriptorOf("path=/api/users/v1")},
		{"shared", "paths", descriptorOf("tenant=t-1042 method=PUT")},
		{"none", "edge", descriptorOf("client=monitoring plan=gold")},
		{"override", "edge", overridden("client=198.51.100.17 plan=gold", 5, typev3.RateLimitUnit_MINUTE)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.Find(c.domain, c.d)
			}
		})
	}
}
