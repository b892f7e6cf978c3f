package target

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/streamcounter/streamcounter/internal/redact"
)

// Report is the result of a run. The names contain the units; null means not known.
type Report struct {
	// The caller sets CommandLine, without secrets.
	CommandLine string  `json:"command_line"`
	Target      string  `json:"target"`
	Callers     int     `json:"callers"`
	PerCall     int     `json:"checks_per_call"`
	Seconds     float64 `json:"seconds"`
	Calls       int64   `json:"calls"`
	Checks      int64   `json:"checks"`
	Admitted    int64   `json:"admitted"`
	// OnError is how many checks passed because on_error decided (over gRPC: without a limit), and not because of
	// room in a window.
	OnError    int64   `json:"admitted_on_error"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	ChecksPerS float64 `json:"checks_per_s"`
	// Per call.
	P50Us int64 `json:"p50_us"`
	P99Us int64 `json:"p99_us"`
	MaxUs int64 `json:"max_us"`
	// Per check.
	ServerCPUUs *float64 `json:"server_cpu_us"`
	RedisCPUUs  *float64 `json:"redis_cpu_us"`
}

func (c *Config) report(t *tally, wall time.Duration) *Report {
	r := t.Report
	r.Target, r.Callers, r.PerCall, r.Seconds = redact.URL(c.URL), c.Callers, c.PerCall, wall.Seconds()
	r.ChecksPerS = float64(r.Checks) / wall.Seconds()
	r.P50Us, r.P99Us, r.MaxUs = t.latency.ValueAtQuantile(50), t.latency.ValueAtQuantile(99), t.latency.Max()
	if t.first != nil {
		r.FirstError = t.first.Error()
	}
	return &r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s, %d callers, %d checks a call, %.1f s\n\n", r.Target, r.Callers, r.PerCall, r.Seconds)
	fmt.Fprintf(t, "checks/s\t%.0f\n", r.ChecksPerS)
	fmt.Fprintf(t, "latency of a call\tp50 %s\tp99 %s\tmax %s\n", us(r.P50Us), us(r.P99Us), us(r.MaxUs))
	fmt.Fprintf(t, "CPU per check\tserver %s\tRedis %s\ttogether %s\n", price(r.ServerCPUUs), price(r.RedisCPUUs),
		price(r.ServerCPUUs, r.RedisCPUUs))
	fmt.Fprintf(t, "checks\t%d\tadmitted %d\n", r.Checks, r.Admitted)
	if r.OnError > 0 {
		fmt.Fprintf(t, "not decided by a limit\t%d\tadmitted because no rule matches, or by on_error\n", r.OnError)
	}
	if r.Errors > 0 {
		fmt.Fprintf(t, "failed calls\t%d of %d; the first: %s\n", r.Errors, r.Calls, r.FirstError)
	}
	fmt.Fprintf(t, "\nby: %s\n", r.CommandLine)
	return t.Flush()
}

func us(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

// price returns the sum of figures, if all are known.
func price(list ...*float64) string {
	sum := 0.0
	for _, p := range list {
		if p == nil {
			return "unknown"
		}
		sum += *p
	}
	return fmt.Sprintf("%.1f µs", sum)
}
