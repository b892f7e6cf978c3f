package windows

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// BenchmarkGroup puts a batch of 1,000 events together as Fold does, before it
// goes to Redis: with few keys most events share an entry, with many none does.
func BenchmarkGroup(b *testing.B) {
	for _, keys := range []int{10, 1_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			rules, err := NewRules([]*Rule{{Name: "api", Match: "user:*",
				Windows: []Window{{Limit: 100, Per: time.Minute}}}})
			testkit.Must(b, err)
			names, err := stream.NewKeys("bench", 1)
			testkit.Must(b, err)
			s := NewRedis(nil, names)
			chance := rand.New(rand.NewPCG(1, 1))
			events := make([]Event, 1000)
			for i := range events {
				ms := int64(1_700_000_000_000 + i/10)
				events[i] = Event{ID: strconv.FormatInt(ms, 10) + "-" + strconv.Itoa(i%10), Ms: ms,
					Key: "user:" + strconv.Itoa(chance.IntN(keys)), Count: 1}
			}
			b.ReportAllocs()
			for b.Loop() {
				grouped, unmatched := s.group(0, rules, events, map[*Plan]*lua.Plan{}, new([]FoldedKey))
				if len(grouped) != 1 || len(unmatched) != 0 {
					b.Fatal(len(grouped), len(unmatched))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
		})
	}
}
