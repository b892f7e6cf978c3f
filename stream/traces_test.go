package stream_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// A service passes the header of its caller on, whatever it is. A value that is no trace context is left out, so that
// the event is counted, and so are the events that are merged with it.
func TestATraceThatIsNotValidIsLeftOut(t *testing.T) {
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const good, vendor = "00-" + trace + "-" + span + "-01", "vendor=1"
	zero := strings.Repeat("0", 32)
	c := streamtest.AnyRedis(t)
	appended := map[string]func(log *stream.Log, e, next api.Event) error{
		"Append": func(log *stream.Log, e, _ api.Event) error { return log.Append(t.Context(), []api.Event{e}).Err },
		"Producer": func(log *stream.Log, e, next api.Event) error {
			p := newProducer(t, log, stream.ProducerConfig{Linger: forGood})
			put(t, p, e, next)
			return p.Close(context.WithoutCancel(t.Context()))
		},
	}
	for _, s := range []struct {
		parent, state, kept, keptState string
	}{
		{good, vendor, good, vendor},
		{good, strings.Repeat("s", 512), good, strings.Repeat("s", 512)},
		{good, strings.Repeat("s", 513), good, ""},
		{"01-" + trace + "-" + span + "-01-later", vendor, "01-" + trace + "-" + span + "-01-later", vendor},
		{"", vendor, "", ""},
		{"no trace", vendor, "", ""},
		{strings.Repeat("x", 300_000), vendor, "", ""},
		{"01-" + trace + "-" + span + "-01-" + strings.Repeat("x", 300_000), vendor, "", ""},
		{good + "-more", vendor, "", ""},
		{good + "\n", vendor, "", ""},
		{"ff" + good[2:], vendor, "", ""},
		{strings.ToUpper(good), vendor, "", ""},
		{"00-" + zero + "-" + span + "-01", vendor, "", ""},
		{"00-" + trace + "-" + zero[:16] + "-01", vendor, "", ""},
	} {
		for way, do := range appended {
			k := newKeys(t, 1)
			e := api.Event{Key: "ip", Count: 1, TraceParent: s.parent, TraceState: s.state}
			next := api.Event{Key: "ip", Count: 1, TraceParent: good}
			testkit.Must(t, do(newLog(t, c, k, stream.DefaultRetention), e, next))
			want := map[string]any{"key": "ip", "count": "1"}
			if way == "Producer" {
				want["count"], want["traceparent"] = "2", good
			}
			if s.kept != "" {
				want["traceparent"] = s.kept
			}
			if s.keptState != "" {
				want["tracestate"] = s.keptState
			}
			entries, err := c.XRange(t.Context(), k.Events(0), "-", "+").Result()
			testkit.Must(t, err)
			if len(entries) != 1 || !cmp.Equal(want, entries[0].Values) {
				t.Errorf("%s, %.80q, %.20q: entries %.500s, want %.500s", way, s.parent, s.state, fmt.Sprint(entries),
					fmt.Sprint(want))
			}
		}
	}
}
