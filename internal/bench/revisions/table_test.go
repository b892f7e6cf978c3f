package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The ratio is the median of the rounds' ratios, beside the least and the greatest.
func TestTable(t *testing.T) {
	table := newTable()
	for _, round := range []struct{ old, now string }{{"10", "5"}, {"20", "20"}, {"30", "9"}} {
		for which, us := range []string{round.old, round.now} {
			report := `{"parts":[{"operation":"check","algorithm":"sliding-log","redis_cpu_us_per_op":` + us + `,
				"yardsticks":[{"name":"GCRA","x_yardstick_median":2,"p50_us":7}]}],"redis_cpu_us_per_event":null}`
			testkit.Must(t, table.add(which, []byte(report)))
		}
	}
	testkit.Must(t, table.add(0, []byte(`{"redis_cpu_us_per_event":4}`)))
	testkit.Must(t, table.add(1, []byte(`{"redis_cpu_us_per_event":6}`)))
	var text strings.Builder
	testkit.Must(t, table.print(&text))
	var got []string
	for line := range strings.Lines(text.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"old new new / old from to", "4.00 6.00 1.500 1.500 1.500 Redis, µs an event",
		"2.00 2.00 1.000 1.000 1.000 check sliding-log GCRA, times the yardstick",
		"20.00 9.00 0.500 0.300 1.000 check sliding-log, Redis, µs"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := table.add(0, []byte("no JSON")); err == nil {
		t.Error("a report that is no JSON is taken")
	}
}
