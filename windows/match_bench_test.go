package windows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// A key that the last of so many rules matches, by the form of the patterns.
func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct{ form, pattern, key string }{
		{"literal", "tenant:%d", "tenant:%d"},
		{"prefix", "tenant:%d:*", "tenant:%d:user:4711"},
		{"wildcard", "*:%d:user:*", "tenant:%d:user:4711"},
	} {
		for _, n := range []int{1, 10, 1000} {
			b.Run(fmt.Sprintf("%s/rules=%d", c.form, n), func(b *testing.B) {
				list := make([]*windows.Rule, n)
				for i := range list {
					list[i] = &windows.Rule{
						Name: fmt.Sprintf("rule-%d", i), Match: fmt.Sprintf(c.pattern, i),
						Windows: []windows.Window{{Limit: 100, Per: time.Minute}},
					}
				}
				rules, key := rulesOf(b, list...), fmt.Sprintf(c.key, n-1)
				last := rules.PlanOf(rules.List()[n-1])
				b.ReportAllocs()
				for b.Loop() {
					if rules.Match(key) != last {
						b.Fatal("another rule matched")
					}
				}
			})
		}
	}
}
