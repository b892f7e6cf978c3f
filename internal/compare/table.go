package compare

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

var columns = []string{"ALGORITHM", "ADMITTED", "UNITS", "OVER", "UNDER", "OVERSHOOT", "REDIS CPU",
	"MEMORY/KEY"}

// row returns a result for people, column by column.
func (r Result) row() []string {
	name := r.Algorithm
	switch r.Kind {
	case KindBaseline:
		name += " (baseline)"
	case KindOracle:
		name += " (the truth)"
	}
	return []string{name, whole(r.AdmittedRequests), whole(r.AdmittedUnits), whole(r.OverAdmittedRequests),
		whole(r.UnderAdmittedRequests), whole(r.GreatestOvershoot),
		told(r.RedisCPU, 1, " µs"), told(r.BytesPerKey, 0, " B")}
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

func told(x *float64, digits int, unit string) string {
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
	text := fmt.Sprintf("limit %s; %s for %s by %s within %s", strings.Join(limits, " and "),
		count(int64(c.Trace.Requests), "request"),
		count(c.Trace.Units, "unit"), count(int64(c.Trace.Keys), "key"), millis(c.Trace.LastMs-c.Trace.FirstMs))
	return text
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// notes are what a reader must know about this trace.
func (c *Comparison) notes() []string {
	var list []string
	if n := c.Trace.RejectedLines; n > 0 {
		list = append(list, fmt.Sprintf("Lines that could not be read and are not in the trace: %d.", n))
	}
	if n := c.Trace.Sorted; n > 0 {
		list = append(list, fmt.Sprintf("Requests that stood after a later one, and were sorted by time: %d.", n))
	}
	return list
}

// footer explains the columns, once for all tables.
func footer(list []*Comparison) []string {
	lines := []string{
		"OVER: admitted, though some window of what this algorithm had admitted then held more than its limit; " +
			"OVERSHOOT: by how many units at most.",
		"UNDER: denied, though every window had room.",
	}
	if len(list) == 0 || list[0].Redis == nil {
		return lines
	}
	c := list[0]
	for _, r := range c.Algorithms {
		if r.Kind == KindRedis && r.RedisCPU == nil {
			return append(lines, fmt.Sprintf(
				"Redis: %s, which does not tell its CPU and memory; a real one does (--redis redis://…).", *c.Redis))
		}
	}
	lines = append(lines,
		fmt.Sprintf("Redis: %s. CPU per check and memory are of the whole server: let nothing else use it meanwhile.",
			*c.Redis))
	for _, c := range list {
		if c.Trace.Keys < minKeysForMemory {
			return append(lines, fmt.Sprintf(
				"Memory per key is shown for traces of at least %d keys: with fewer, the server's own buffers "+
					"outweigh them.", minKeysForMemory))
		}
	}
	return lines
}

// WriteTables writes a table for each comparison, and what the columns mean.
func WriteTables(w io.Writer, list []*Comparison) error {
	for _, c := range list {
		fmt.Fprintf(w, "%s\n%s\n", c.Trace.Name, c.heading())
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.Join(columns, "\t"))
		for _, r := range c.Algorithms {
			fmt.Fprintln(t, strings.Join(r.row(), "\t"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, n := range c.notes() {
			fmt.Fprintln(w, n)
		}
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintln(w, strings.Join(footer(list), "\n"))
	return err
}
