package consumers

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// While Redis does not answer, no gauge shows a last value that says that all is well.
func TestGaugesOfAServerThatDoesNotAnswer(t *testing.T) {
	server := streamtest.EmbeddedRedis(t)
	k, err := stream.NewKeys(streamtest.Prefix(t), 4)
	testkit.Must(t, err)
	m := NewMetrics(prometheus.NewRegistry())
	g := &gauges{ahead: map[int]bool{}, shared: &shared{Config: Config{Redis: streamtest.Connect(t, server.Addr()),
		Keys: k, Metrics: m, Log: slog.New(slog.DiscardHandler)}}}
	for _, refusal := range []string{"", "LOADING Redis is loading the dataset in memory", ""} {
		server.SetError(refusal)
		want := k.Partitions
		if refusal != "" {
			want = 0
		}
		if err := g.measure(t.Context()); (err == nil) != (refusal == "") {
			t.Errorf("Redis answers %q: %v", refusal, err)
		}
		for _, v := range []*prometheus.GaugeVec{m.oldestUnread, m.aheadOfClock, m.pending, m.outboxDepth,
			m.outboxOldest} {
			if got := testutil.CollectAndCount(v); got != want {
				t.Errorf("Redis answers %q: %d partitions have a gauge, want %d", refusal, got, want)
			}
		}
	}
}
