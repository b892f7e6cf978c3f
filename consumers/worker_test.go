package consumers

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// read returns batches of the given numbers of events, of the partitions from 0 on.
func read(events ...int) (batches []eventlog.Batch) {
	for p, n := range events {
		batches = append(batches, eventlog.Batch{Partition: p, Messages: make([]entry.Message, n)})
	}
	return batches
}

func workerOf(c Config) *worker { return &worker{shared: &shared{Config: c}} }

func TestReadsAreDividedAmongCalls(t *testing.T) {
	for _, c := range []struct {
		read       []int
		separately bool
		want       string
	}{
		{nil, false, "[]"},
		{[]int{1}, false, "[[1]]"},
		{[]int{1, 2, 3}, false, "[[1 2 3]]"},
		{[]int{1, 2, 3}, true, "[[1] [2] [3]]"},
		{[]int{50, 50}, false, "[[50 50]]"},
		{[]int{50, 51}, false, "[[50] [51]]"},
		{[]int{100, 100, 1, 99, 1}, false, "[[100] [100] [1 99] [1]]"},
		{[]int{60, 30, 30, 70, 30}, false, "[[60 30] [30 70] [30]]"},
	} {
		w := workerOf(Config{MaxBatch: 100, separately: c.separately})
		got := [][]int{}
		for _, call := range w.calls(read(c.read...)) {
			var sizes []int
			for _, b := range call {
				sizes = append(sizes, len(b.Messages))
			}
			got = append(got, sizes)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v, expected %s", c.read, got, c.want)
		}
	}
}

func TestPausesBetweenReads(t *testing.T) {
	w := workerOf(Config{MaxBatch: 100, ReadPause: 2 * time.Millisecond})
	for _, c := range []struct {
		read []int
		want time.Duration
	}{
		{nil, 0},
		{[]int{1}, 0},
		{[]int{2}, 250 * time.Microsecond},
		{[]int{1, 1, 1}, 500 * time.Microsecond},
		{[]int{4, 5}, 2 * time.Millisecond},
		{[]int{50, 50, 50}, 2 * time.Millisecond},
		{[]int{1, 100, 1}, 0}, // more events are waiting
	} {
		if got := w.pauseAfter(read(c.read...)); got != c.want {
			t.Errorf("%v: %v, expected %v", c.read, got, c.want)
		}
	}
	w.ReadPause = -1
	if got := w.pauseAfter(read(9)); got > 0 {
		t.Errorf("without pauses: %v", got)
	}
}

// At a steady rate the pause converges: to none below some thousand events a second, and to the whole pause above
// that rate, whatever it was before. A read and a fold take 150 µs here.
func TestPausesFollowTheRate(t *testing.T) {
	w := workerOf(Config{MaxBatch: 1000, ReadPause: 2 * time.Millisecond})
	const busy = 150 * time.Microsecond
	for _, c := range []struct {
		rate        float64 // events a second
		least, most time.Duration
	}{
		{100, 0, 0}, {1000, 0, 0}, {2000, 0, 0}, {3000, 0, 0},
		{10_000, 2 * time.Millisecond, 2 * time.Millisecond},
		{100_000, 2 * time.Millisecond, 2 * time.Millisecond},
	} {
		for _, pause := range []time.Duration{0, 2 * time.Millisecond} {
			waiting := 0.0
			for range 200 {
				waiting += c.rate * (busy + pause).Seconds()
				n := max(1, int(waiting)) // a read waits for the first event
				waiting = max(0, waiting-float64(n))
				pause = w.pauseAfter(read(n))
			}
			if pause < c.least || pause > c.most {
				t.Errorf("%g events/s: a pause of %v, expected %v to %v", c.rate, pause, c.least, c.most)
			}
		}
	}
}

// No code reads the rules for a partition while other code examines it.
func TestRulesAreReadInTurn(t *testing.T) {
	var looking atomic.Bool
	all := shared{turns: make([]sync.Mutex, 2), Config: Config{Rules: func() *windows.Rules {
		if looking.Swap(true) {
			t.Error("the rules are read while another looks by those of before")
		}
		return nil
	}}}
	var lookers sync.WaitGroup
	for range 8 {
		lookers.Go(func() {
			for range 100 {
				_ = all.inTurn(1, func(*windows.Rules) error {
					runtime.Gosched()
					looking.Store(false)
					return nil
				})
			}
		})
	}
	lookers.Wait()
}

// One fold counts events of several traces: its span belongs to the first trace, and each event has a span in its own
// trace, with links in both directions. The number of spans is bounded.
func TestSpansOfAFold(t *testing.T) {
	keys, err := stream.NewKeys("sc", 1)
	testkit.Must(t, err)
	recorder := tracetest.NewSpanRecorder()
	w := &worker{shared: &shared{Config: Config{Keys: keys,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")}}}
	message := func(parent string) entry.Message {
		return entry.Message{ID: "1-0", Values: map[string]any{"key": "k", "traceparent": parent}}
	}
	trace := func(n int) string { return fmt.Sprintf("%032x", n) }
	var messages []entry.Message
	for _, bad := range []string{"", "x", "00-" + trace(0) + "-00f067aa0ba902b7-01", // a trace cannot be 0
		"00-" + trace(9) + "-00f067aa0ba902b7-00", // not sampled
		strings.Repeat("0", 1000)} {
		messages = append(messages, message(bad))
	}
	for n := range 2 * maxTraced {
		messages = append(messages, message("00-"+trace(n+1)+"-00f067aa0ba902b7-01"))
	}
	batches, folds := []eventlog.Batch{{Messages: messages}}, make([]counters.Batch, 1)
	_, end := w.startFold(t.Context(), batches, folds)
	if end(nil); !strings.HasPrefix(folds[0].TraceParent, "00-"+trace(1)+"-") {
		t.Errorf("transitions get %q, want the trace of the first event", folds[0].TraceParent)
	}
	ended := recorder.Ended()
	if len(ended) != maxTraced+1 {
		t.Fatalf("%d spans, want one per event up to %d, and the fold's", len(ended), maxTraced)
	}
	fold := ended[0]
	if fold.Name() != "FCALL fold" || len(fold.Links()) != maxTraced-1 {
		t.Errorf("%s has %d links, want one to each other event", fold.Name(), len(fold.Links()))
	}
	for n, span := range ended[1:] {
		if id := span.SpanContext().TraceID().String(); id != trace(n+1) || len(span.Links()) != 1 ||
			span.Links()[0].SpanContext.SpanID() != fold.SpanContext().SpanID() {
			t.Errorf("event %d: trace %s, links %v", n, id, span.Links())
		}
	}

	batches[0].Messages = messages[:5]
	ctx, end := w.startFold(t.Context(), batches, folds)
	if end(nil); ctx != t.Context() || folds[0].TraceParent != "" || len(recorder.Ended()) != maxTraced+1 {
		t.Errorf("spans without a trace: %q", folds[0].TraceParent)
	}
	w.Tracer = nil
	if n := testing.AllocsPerRun(100, func() { w.startFold(ctx, batches, folds) }); n > 1 {
		t.Errorf("%v allocations without a tracer", n)
	}
}
