package config

import (
	"fmt"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/streamcounter/streamcounter/internal/testkit"
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

// A large configuration costs no more: each depth is one look-up.
func BenchmarkFindAmong(b *testing.B) {
	f := &file{name: "f", domain: "edge"}
	for i := range 10_000 {
		f.descriptors = append(f.descriptors, &descriptor{key: "client", value: fmt.Sprint("c", i),
			limit: &rateLimit{unit: "minute", perUnit: 5, multiplier: 1}})
	}
	l, err := build([]*file{f}, options{})
	testkit.Must(b, err)
	d := descriptorOf("client=c9000")
	b.ReportAllocs()
	for b.Loop() {
		l.Find("edge", d)
	}
}

func BenchmarkKey(b *testing.B) {
	d := descriptorOf("client=198.51.100.17 plan=gold")
	b.ReportAllocs()
	for b.Loop() {
		Key("edge", d, "client")
	}
}
