package stream_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func BenchmarkPartition(b *testing.B) {
	keys, err := stream.NewKeys("sc", stream.DefaultPartitions)
	testkit.Must(b, err)
	for name, key := range map[string]string{"plain": "user:4711", "tagged": "user:{acme}:4711"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p := keys.Partition(key); p >= stream.DefaultPartitions {
					b.Fatal(p)
				}
			}
		})
	}
}
