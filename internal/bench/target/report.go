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

func (c *Config) report(t *tally, wall time.Duration, before, after used) *Report {
	r := &Report{
		Target: redact.URL(c.URL), Callers: c.Callers, PerCall: c.PerCall, Seconds: wall.Seconds(),
		Calls: t.calls, Checks: t.checks, Admitted: t.admitted, OnError: t.onError, Errors: t.errors,
		ChecksPerS: float64(t.checks) / wall.Seconds(),
		P50Us:      t.latency.ValueAtQuantile(50), P99Us: t.latency.ValueAtQuantile(99), MaxUs: t.latency.Max(),
	}
	if t.first != nil {
		r.FirstError = t.first.Error()
	}
	per := func(before, after *time.Duration) *float64 {
		if before == nil || after == nil {
			return nil
		}
		us := float64((*after - *before).Nanoseconds()) / 1000 / float64(t.checks)
		return &us
	}
	r.ServerCPUUs, r.RedisCPUUs = per(before.server, after.server), per(before.redis, after.redis)
	return r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s, %d callers, %d checks a call, %.1f s\n\n", r.Target, r.Callers, r.PerCall, r.Seconds)
	fmt.Fprintf(t, "checks/s\t%.0f\n", r.ChecksPerS)
	fmt.Fprintf(t, "latency of a call\tp50 %s\tp99 %s\tmax %s\n", us(r.P50Us), us(r.P99Us), us(r.MaxUs))
	fmt.Fprintf(t, "CPU per check\tserver %s\tRedis %s\ttogether %s\n", price(r.ServerCPUUs), price(r.RedisCPUUs),
		price(sum(r.ServerCPUUs, r.RedisCPUUs)))
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

func price(p *float64) string {
	if p == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f µs", *p)
}

func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	s := *a + *b
	return &s
}
