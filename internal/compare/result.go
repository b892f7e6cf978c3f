package compare

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/measure"
)

// Comparison is the result of one trace with every algorithm. Its JSON is for machines: the names contain the units,
// and null means not known.
type Comparison struct {
	Trace   TraceInfo    `json:"trace"`
	Windows []WindowInfo `json:"windows"`
	Redis   *string      `json:"redis"` // without its password; null if none was used
	// Algorithms are in the order of Names, the oracle last.
	Algorithms []Result `json:"algorithms"`
}

// TraceInfo describes the trace.
type TraceInfo struct {
	Name          string `json:"name"`
	Requests      int    `json:"requests"`
	Units         int64  `json:"units"`
	Keys          int    `json:"keys"`
	FirstMs       int64  `json:"first_ms"`
	LastMs        int64  `json:"last_ms"`
	Sorted        int    `json:"requests_sorted"`
	RejectedLines int    `json:"rejected_lines"`
}

// WindowInfo is one window of the rule.
type WindowInfo struct {
	Limit    int64 `json:"limit"`
	WindowMs int64 `json:"window_ms"`
}

// Kind says what sort of contestant an algorithm is.
type Kind string

// The kinds of contestants.
const (
	KindRedis     Kind = "redis"      // a rule may name it; it counts in Redis
	KindInProcess Kind = "in-process" // counters.Local
	KindBaseline  Kind = "baseline"   // a model that no rule can name
	KindOracle    Kind = "oracle"     // the correct result
)

// Result is the result of one algorithm. An over-admitted request was admitted although some window then held more
// than its limit, counting what this algorithm had admitted before. An under-admitted request was denied although
// every window had room.
type Result struct {
	Algorithm             string   `json:"algorithm"`
	Kind                  Kind     `json:"kind"`
	OfferedRequests       int64    `json:"offered_requests"`
	OfferedUnits          int64    `json:"offered_units"`
	AdmittedRequests      int64    `json:"admitted_requests"`
	AdmittedUnits         int64    `json:"admitted_units"`
	OverAdmittedRequests  int64    `json:"over_admitted_requests"`
	OverAdmittedUnits     int64    `json:"over_admitted_units"`
	UnderAdmittedRequests int64    `json:"under_admitted_requests"`
	UnderAdmittedUnits    int64    `json:"under_admitted_units"`
	GreatestOvershoot     int64    `json:"greatest_overshoot_units"`
	FirstOverAdmitted     *moment  `json:"first_over_admitted"`
	FirstUnderAdmitted    *moment  `json:"first_under_admitted"`
	RedisCPU              *float64 `json:"redis_cpu_us_per_check"`
	// BytesPerKey is also null for traces of fewer than minKeysForMemory keys.
	BytesPerKey *float64 `json:"bytes_per_key"`
}

// moment is the time and key at which something first happened in the trace.
type moment struct {
	Ms  int64  `json:"ms"`
	Key string `json:"key"`
}

// minKeysForMemory is how many keys a trace needs for a figure of memory per key. The server's buffers for a
// connection vary by some 30 KB, which is as much as the memory of fewer keys.
const minKeysForMemory = 1000

func rounded(x float64, digits int) *float64 {
	scale := math.Pow10(digits)
	return measure.Known(math.Round(x*scale) / scale)
}

// Report has the comparisons of one run of the command.
type Report struct {
	Comparisons []*Comparison `json:"comparisons"`
}

// WriteText writes a table for each comparison, and what the columns mean.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	for _, c := range r.Comparisons {
		c.write(&b)
	}
	footer(&b, r.Comparisons)
	_, err := b.WriteTo(w)
	return err
}

func (c *Comparison) write(w *bytes.Buffer) {
	fmt.Fprintf(w, "%s\n%s\n", c.Trace.Name, c.heading())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ALGORITHM\tADMITTED\tUNITS\tOVER\tUNDER\tOVERSHOOT\tREDIS CPU\tMEMORY/KEY")
	notes := map[Kind]string{KindBaseline: " (baseline)", KindOracle: " (the truth)"}
	for _, r := range c.Algorithms {
		fmt.Fprintf(t, "%s%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", r.Algorithm, notes[r.Kind], r.AdmittedRequests,
			r.AdmittedUnits, r.OverAdmittedRequests, r.UnderAdmittedRequests, r.GreatestOvershoot,
			formatFigure(r.RedisCPU, 1, " µs"), formatFigure(r.BytesPerKey, 0, " B"))
	}
	_ = t.Flush() // a buffer takes all
	if n := c.Trace.RejectedLines; n > 0 {
		fmt.Fprintf(w, "Lines that could not be read and are not in the trace: %d.\n", n)
	}
	if n := c.Trace.Sorted; n > 0 {
		fmt.Fprintf(w, "Requests that stood after a later one, and were sorted by time: %d.\n", n)
	}
	fmt.Fprintln(w)
}

func formatFigure(x *float64, digits int, unit string) string {
	if x == nil {
		return "-"
	}
	return strconv.FormatFloat(*x, 'f', digits, 64) + unit
}

// heading describes the windows and the requests.
func (c *Comparison) heading() string {
	var limits []string
	for _, w := range c.Windows {
		limits = append(limits, fmt.Sprintf("%d per %s", w.Limit, millis(w.WindowMs)))
	}
	return fmt.Sprintf("limit %s; %s for %s by %s within %s", strings.Join(limits, " and "),
		english.Plural(c.Trace.Requests, "request"), english.Plural(c.Trace.Units, "unit"),
		english.Plural(c.Trace.Keys, "key"), millis(c.Trace.LastMs-c.Trace.FirstMs))
}

// footer explains the columns, once for all tables.
func footer(w *bytes.Buffer, list []*Comparison) {
	fmt.Fprintln(w, "OVER: admitted, though some window of what this algorithm had admitted then held more than its "+
		"limit; OVERSHOOT: by how many units at most.\nUNDER: denied, though every window had room.")
	if list[0].Redis == nil {
		return
	}
	silent := func(r Result) bool { return r.Kind == KindRedis && r.RedisCPU == nil }
	if slices.ContainsFunc(list[0].Algorithms, silent) {
		fmt.Fprintf(w, "Redis: %s, which does not report its CPU and memory; a real Redis does (--redis URL).\n",
			*list[0].Redis)
		return
	}
	fmt.Fprintf(w, "Redis: %s. CPU per check and memory are of the whole server: let nothing else use it meanwhile.\n",
		*list[0].Redis)
	if slices.ContainsFunc(list, func(c *Comparison) bool { return c.Trace.Keys < minKeysForMemory }) {
		fmt.Fprintf(w, "Memory per key is shown for traces of at least %d keys: with fewer, the server's own buffers "+
			"outweigh them.\n", minKeysForMemory)
	}
}
