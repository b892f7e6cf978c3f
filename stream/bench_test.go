package stream_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/stream"
)

func BenchmarkDecode(b *testing.B) {
	m := stream.Message{ID: "1700000000000-0", Values: map[string]any{"key": "user:4711", "count": "3"}}
	b.ReportAllocs()
	for b.Loop() {
		if e, err := m.Decode(); err != nil || e.Count != 3 {
			b.Fatal(e, err)
		}
	}
}

func BenchmarkPartition(b *testing.B) {
	keys, err := stream.NewKeys("sc", stream.DefaultPartitions)
	if err != nil {
		b.Fatal(err)
	}
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
