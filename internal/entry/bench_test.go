package entry_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/internal/entry"
)

func BenchmarkDecode(b *testing.B) {
	m := entry.Message{ID: "1700000000000-0", Values: map[string]any{"key": "user:4711", "count": "3"}}
	b.ReportAllocs()
	for b.Loop() {
		if e, err := m.Decode(); err != nil || e.Count != 3 {
			b.Fatal(e, err)
		}
	}
}
