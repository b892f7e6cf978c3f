package consumers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// While Redis does not answer, no gauge shows a last value that says that all is well.
func TestGaugesOfAServerThatDoesNotAnswer(t *testing.T) {
	server := streamtest.EmbeddedRedis(t)
	g := poolOn(t, streamtest.Connect(t, server.Addr()), 4, nil).gauges
	m := g.Metrics
	for _, refusal := range []string{"", "LOADING Redis is loading the dataset in memory", ""} {
		server.SetError(refusal)
		want := g.Keys.Partitions
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
