package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// figures are the fields of a report that are compared, each with what the table calls it.
// They are CPU time, which depends less on what else the machine does than elapsed time.
var figures = map[string]string{
	"redis_cpu_us_per_op":     "Redis, µs",
	"redis_cpu_us_per_event":  "Redis, µs an event",
	"worker_cpu_us_per_event": "worker, µs an event",
	"x_yardstick_median":      "times the yardstick",
}

// table gathers figures: one list for the old and one for the new program, in the order of
// the rounds.
type table struct {
	names  []string // in the order in which they came
	values map[string]*[2][]float64
}

func newTable() *table { return &table{values: map[string]*[2][]float64{}} }

// add takes the figures of a report. which is 0 for the old program, 1 for the new.
func (t *table) add(which int, report []byte) error {
	var value map[string]any
	if err := json.Unmarshal(report, &value); err != nil {
		return fmt.Errorf("the report of a benchmark is no JSON object: %w", err)
	}
	t.walk(which, "", value)
	return nil
}

// walk looks for figures in an object and those in it. of names the operation they are of.
func (t *table) walk(which int, of string, object map[string]any) {
	for _, field := range []string{"operation", "algorithm", "name"} {
		if s, ok := object[field].(string); ok && s != "" {
			of += " " + s
		}
	}
	for field, called := range figures {
		if n, ok := object[field].(float64); ok {
			t.put(which, of+", "+called, n)
		}
	}
	for _, field := range []string{"parts", "yardsticks"} {
		list, _ := object[field].([]any)
		for _, x := range list {
			if inner, ok := x.(map[string]any); ok {
				t.walk(which, of, inner)
			}
		}
	}
}

func (t *table) put(which int, name string, n float64) {
	name = name[1:]
	if name[0] == ' ' { // of no operation
		name = name[1:]
	}
	if t.values[name] == nil {
		t.values[name] = &[2][]float64{}
		t.names = append(t.names, name)
	}
	t.values[name][which] = append(t.values[name][which], n)
}

// print writes, per figure, the medians, the median of the rounds' ratios, and the least and the greatest of these.
func (t *table) print(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "old\tnew\tnew / old\tfrom\tto\t")
	slices.Sort(t.names)
	for _, name := range t.names {
		old, now := t.values[name][0], t.values[name][1]
		var ratios []float64
		for i := range min(len(old), len(now)) {
			if old[i] > 0 {
				ratios = append(ratios, now[i]/old[i])
			}
		}
		if len(ratios) == 0 {
			continue
		}
		fmt.Fprintf(tab, "%.2f\t%.2f\t%.3f\t%.3f\t%.3f\t  %s\n", median(old), median(now), median(ratios),
			slices.Min(ratios), slices.Max(ratios), name)
	}
	return tab.Flush()
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}
