package api_test

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

func BenchmarkThrottleSubject(b *testing.B) {
	for _, c := range []struct{ form, key string }{
		{"plain", "user:4711"},
		{"base64", "user.4711@example.org/ü"},
		{"hash", strings.Repeat("user.", 60)},
	} {
		b.Run(c.form, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if api.ThrottleSubject("sc", "api", c.key) == "" {
					b.Fatal("empty")
				}
			}
		})
	}
}
