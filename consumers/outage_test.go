package consumers

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The beginning and the end of an outage are logged once each, for each kind of failure.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	var log testkit.Log
	var later []func()
	o := newOutages(slog.New(slog.NewTextHandler(&log, nil)))
	o.after = func(_ time.Duration, f func()) { later = append(later, f) }
	settle := func() {
		for _, f := range later {
			f()
		}
		later = nil
	}
	said := func(want ...string) {
		t.Helper()
		settle()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if log.String() == "" {
			lines = nil
		}
		if len(lines) != len(want) {
			t.Fatalf("want %q, the log has\n%s", want, log.String())
		}
		for i, part := range want {
			if !strings.Contains(lines[i], part) {
				t.Errorf("want %q: %s", part, lines[i])
			}
		}
	}
	refused := errors.New("dial tcp: connection refused")
	o.note("reading events", 0, nil)
	o.note("releasing throttles", 0, refused)
	o.note("reading events", 0, refused)
	o.note("reading events", 8, streamtest.Refusal("LOADING Redis is loading"))
	o.note("releasing throttles", 0, nil)
	o.note("reading events", 0, nil)
	begun := "Redis does not answer"
	said(begun) // another shard has not read yet
	o.note("reading events", 8, nil)
	o.note("reading events", 0, refused) // this step hung since the outage
	said(begun)
	o.note("reading events", 0, context.Canceled) // the process stops
	o.note("reading events", 0, nil)
	over := "Redis answers again: work goes on\" took="
	said(begun, over)

	// A failure for another reason is logged too, and does not hide an outage.
	o.note("releasing throttles", 0, streamtest.Refusal("NOPERM this user has no permissions"))
	o.note("releasing throttles", 0, streamtest.Refusal("NOPERM this user has no permissions"))
	o.note("reading events", 0, refused)
	o.note("looking for keys", 0, partitionError{4, streamtest.Refusal("ERR user_script:12")})
	o.note("reading events", 0, nil)
	said(begun, over, "releasing throttles failed, trying again", begun,
		`looking for keys failed, trying again" step="looking for keys" partition=4 error="ERR`, over)
	o.note("releasing throttles", 0, nil)
	o.note("looking for keys", 0, nil)
	o.note("reading outboxes", 2, replyguard.ErrTooLarge) // Redis has answered
	o.note("reading outboxes", 2, nil)
	settle()
	if n := strings.Count(log.String(), "a failure is over"); n != 3 {
		t.Errorf("%d failures are over, want 3:\n%s", n, log.String())
	}
}

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
