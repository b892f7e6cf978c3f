package consumers

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// If one dead stream is of another type, the gaps of the other partitions are still recorded.
func TestGapsOfSeveralPartitions(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t)) // the embedded one does not keep these numbers
	ctx := t.Context()
	d := poolOn(t, c, 4, nil).all.dead
	keys := d.Keys
	for p := range 3 { // partition 3 has nothing
		testkit.Must(t, c.XGroupCreateMkStream(ctx, keys.Events(p), eventlog.Group, "0").Err())
		for range 5 {
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: keys.Events(p), Values: []any{"key", "k"}}).Err())
		}
		testkit.Must(t, c.XTrimMaxLen(ctx, keys.Events(p), int64(p)+1).Err())
	}
	testkit.Must(t, c.Set(ctx, keys.Dead(1), "foreign", 0).Err())
	expect := func(want float64) {
		t.Helper()
		if n := testutil.ToFloat64(d.Metrics.trimmed); n != want {
			t.Errorf("%v events are counted as trimmed, want %v", n, want)
		}
	}
	var one partitionError
	if err := d.ofGaps(ctx, keys.All()...); !errors.As(err, &one) || one.partition != 1 ||
		!strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("%v, want WRONGTYPE of partition 1", err)
	}
	expect(4 + 2)
	testkit.Must(t, c.Del(ctx, keys.Dead(1)).Err())
	for range 2 { // the second call finds no more gaps
		testkit.Must(t, d.ofGaps(ctx, keys.All()...))
		expect(4 + 3 + 2)
	}
	for p := range 3 {
		if n := c.XLen(ctx, keys.Dead(p)).Val(); n != 1 {
			t.Errorf("partition %d has %d dead letters, want 1", p, n)
		}
	}
}

// The cut of a large dead letter does not split a character.
func TestACutDeadLetterIsValidUTF8(t *testing.T) {
	for _, field := range []string{"k", "ke", "key"} {
		m := entry.Message{Values: map[string]any{field: strings.Repeat("€", 2000)}}
		body := letterOf(m, invalid, "").body
		if !utf8.ValidString(body) || !strings.HasSuffix(body, "€…") || len(body) < 4094 {
			t.Errorf("%d bytes, which end in %q", len(body), body[len(body)-9:])
		}
	}
}
