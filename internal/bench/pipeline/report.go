package pipeline

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is the result of a run. The names contain the units.
type Report struct {
	// The caller sets CommandLine and Redis, without secrets.
	CommandLine string  `json:"command_line"`
	Redis       string  `json:"redis"`
	Events      int64   `json:"events"`
	Seconds     float64 `json:"seconds"`
	EventsPerS  float64 `json:"events_per_s"`
	// RedisCPUUs is the CPU time of Redis's main thread per event, including the XADD (but not in a drain).
	RedisCPUUs float64 `json:"redis_cpu_us_per_event"`
	// WorkerCPUUs is the CPU time of the worker per event, from its start to its end.
	WorkerCPUUs float64 `json:"worker_cpu_us_per_event"`
	// Unread is how many events were not folded when the load ended.
	Unread int64 `json:"unread"`
	// Decisions is nil for a drain.
	Decisions *Decisions `json:"decisions,omitempty"`
}

// Decisions are latencies from the XADD to the message on NATS.
type Decisions struct {
	Count int64 `json:"count"`
	// Missing is how many decisions had not arrived when the load ended.
	Missing int   `json:"missing"`
	P50Us   int64 `json:"p50_us"`
	P90Us   int64 `json:"p90_us"`
	P99Us   int64 `json:"p99_us"`
	MaxUs   int64 `json:"max_us"`
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%d events counted in %.1f s\n\n", r.Events, r.Seconds)
	fmt.Fprintf(t, "events/s\t%.0f\n", r.EventsPerS)
	fmt.Fprintf(t, "CPU per event\tRedis %.1f µs\tworker %.1f µs\n", r.RedisCPUUs, r.WorkerCPUUs)
	if d := r.Decisions; d != nil {
		fmt.Fprintf(t, "XADD to decision\tp50 %s\tp90 %s\tp99 %s\tmax %s\t(%d, %d not heard)\n",
			us(d.P50Us), us(d.P90Us), us(d.P99Us), us(d.MaxUs), d.Count, d.Missing)
		fmt.Fprintf(t, "not folded at the end\t%d\n", r.Unread)
	}
	fmt.Fprintf(t, "\nby: %s\n", r.CommandLine)
	return t.Flush()
}

func us(n int64) string { return (time.Duration(n) * time.Microsecond).String() }
