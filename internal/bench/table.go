package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the report for people: each operation with its yardsticks
// beneath it, and how many times theirs it took: x in Redis CPU, with the median
// over the slices, and in time.
func (r *Report) WriteText(to io.Writer) error {
	w := &sticky{w: to}
	r.writeHead(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	width := len("algorithm")
	for _, p := range r.Parts {
		width = max(width, len(p.Algorithm))
		for _, y := range p.Yardsticks {
			width = max(width, len(y.Name)+2)
		}
	}
	row := func(operation, name string, f *Figures, x, median, wall *float64) {
		writeRow(t, fmt.Sprintf("%-9s\t%-*s", operation, width, name), f, x, median, wall)
	}
	fmt.Fprintf(t, "operation\t%-*s\toperations\tops/s\tRedis µs/op\tx\tx median\tx time\tp50 "+
		"µs\tp90\tp99\tp99.9\tmax\terrors\t\n", width, "algorithm")
	for _, p := range r.Parts {
		row(p.Operation, p.Algorithm, &p.Figures, nil, nil, nil)
		for _, y := range p.Yardsticks {
			row("", "  "+y.Name, &y.Figures, y.XYardstick, y.XYardstickMedian, y.XYardstickWall)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for i := range r.Parts {
		r.Parts[i].writeNotes(w, r.Settings.Batch)
	}
	return w.err
}

func (r *Report) writeHead(w io.Writer) {
	s := r.Settings
	fmt.Fprintln(w, r.CommandLine)
	fmt.Fprintf(w, "Redis %s at %s, stream-node-max-bytes %s; %s %s, %d CPUs; %s\n",
		orUnknown(r.RedisVersion), r.Redis, number(r.StreamNodeMaxBytes), r.Go, r.Platform, r.CPUs,
		r.Started.Format(time.RFC3339))
	skew := s.Skew
	if s.ZipfS > 0 {
		skew += fmt.Sprintf(" s=%g", s.ZipfS)
	}
	fmt.Fprintf(w, "%d keys, %s, %d entries each; limit %d per %s; %d connections, batches of %d, %d partitions, "+
		"seed %d\n\n",
		s.Keys, skew, s.EntriesPerKey, s.Limit, short(time.Duration(s.PerMs)*time.Millisecond), s.Connections,
		s.Batch, s.Partitions, s.Seed)
}

func writeRow(w io.Writer, head string, f *Figures, x, median, wall *float64) {
	fmt.Fprintf(w, "%s\t%d\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", head, f.Operations, f.OpsPerS,
		figure(f.RedisCPUUsPerOp, "%.2f"), figure(x, "%.2f"), figure(median, "%.2f"), figure(wall, "%.2f"),
		micros(f.P50Us), micros(f.P90Us), micros(f.P99Us), micros(f.P999Us), micros(f.MaxUs), f.Errors)
}

// writeNotes says what does not fit into a column.
func (p *Part) writeNotes(w io.Writer, batch int) {
	fmt.Fprintf(w, "%s: ", (&part{operation: p.Operation, algorithm: p.Algorithm}).String())
	if p.Loop == "open" {
		fmt.Fprintf(w,
			"open loop at %g/s, latency from the scheduled start (this process began a call up to %s µs late)",
			*p.RatePerS, figure(p.MaxLateStartUs, "%.0f"))
	} else {
		fmt.Fprint(w, "closed loop, each connection waits for its answer")
	}
	if p.Operation == Append || p.Operation == Fold {
		fmt.Fprintf(w, "; latency of a batch of %.0f on average, at most %d",
			float64(p.Operations)/float64(max(1, p.Calls)), batch)
	}
	if p.Admitted != nil {
		share := 100 / float64(max(1, *p.Admitted+*p.Denied))
		fmt.Fprintf(w, "; %.1f%% admitted, %.1f%% denied", share*float64(*p.Admitted), share*float64(*p.Denied))
	}
	if p.Folded != nil {
		fmt.Fprintf(w, "; %d appended, %d folded (%d of them merged), %d late, %d gone", *p.Appended, *p.Folded,
			*p.Merged, *p.Late, *p.Gone)
	}
	if p.UsedPerKeyBefore != nil && p.UsedPerKeyAfter != nil {
		fmt.Fprintf(w, "; a key had used %.1f before, %.1f after", *p.UsedPerKeyBefore, *p.UsedPerKeyAfter)
	}
	if p.BytesPerKey != nil {
		fmt.Fprintf(w, "; %.0f B per key, %.1f B per entry", *p.BytesPerKey, *p.BytesPerEntry)
	}
	fmt.Fprintln(w)
	if p.FirstError != "" {
		fmt.Fprintf(w, "  first error: %s\n", p.FirstError)
	}
	for _, y := range p.Yardsticks {
		if y.FirstError != "" {
			fmt.Fprintf(w, "  first error of %s: %s\n", y.Name, y.FirstError)
		}
	}
}

func figure(x *float64, format string) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x)
}

// micros leaves out digits that no measurement supports.
func micros(us float64) string {
	if us < 100 {
		return strconv.FormatFloat(us, 'f', 1, 64)
	}
	return strconv.FormatFloat(us, 'f', 0, 64)
}

// short is a duration without its zeros: 1m, not 1m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func number(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return strconv.FormatInt(*n, 10)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// sticky keeps the first error of its writer.
type sticky struct {
	w   io.Writer
	err error
}

func (s *sticky) Write(b []byte) (int, error) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
	return len(b), s.err
}
