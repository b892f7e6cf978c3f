package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

func newCompare() *cobra.Command {
	c := settings.New()
	c.Redis.URL = "embedded"
	var run compareRun
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Run a trace of requests through every algorithm, side by side",
		Long: `Sends the same requests to every algorithm, at the trace's own times (a day takes
seconds), and recounts what each of them admitted.

Traces (one of them):
  --boundary    two demonstrations of bursts around an edge of the clock
  --clf FILE    a web server's log in common or combined format; each line asks
                for one unit of the key ip:<remote host>, or with --key user of
                user:<user>, as append does; lines without a user are skipped, and
                counted. The requests of one second are spread evenly over it
  --trace FILE  lines of MS KEY [COST] [FIELD=VALUE ...]; MS is in milliseconds
With --rules FILE the rules of a file take the place of the algorithms: who would
have been denied and throttled, when, and for how long. Their windows of different
values count the ip, user and path of each line of a log.
FILE may be - for standard input. Requests are sorted by time. A line of a log
that cannot be read is reported with its number; the exit code is then 1.

Three more are compared with the algorithms that a rule can name: "in-process" counts
while Redis is away, "gcra" is the generic cell rate algorithm of many limiters, and
"oracle" admits exactly what the limit allows. OVER counts requests that an algorithm
admitted beyond a window's limit. UNDER counts requests that it denied although every
window had room.

Each run has its own prefix, sc-compare-…, and removes its keys. The embedded Redis
reports neither CPU nor memory; for those give --redis, a server that nothing else uses.`,
		Example: `  streamcounter compare --boundary
  streamcounter compare --clf access.log --window 10/1s --window 100/1m
  streamcounter compare --clf access.log --rules rules.yml
  streamcounter compare --trace requests.txt --algorithms sliding-log,gcra --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCompare(cmd, c.Redis, run) },
	}
	c.FlagsOnly = []string{"redis"}
	c.Flags(cmd, "redis")
	f := cmd.Flags()
	f.Bool("boundary", false, "trace: two bursts around an edge of the clock, in two ways")
	f.String("clf", "", "trace: a web server's log (- for standard input)")
	f.StringVar(&run.form.key, "key", "ip", "part of a line of the log that is its key: ip or user")
	f.String("trace", "", "trace: lines of MS KEY [COST] [FIELD=VALUE ...] (- for standard input)")
	f.StringArrayVar(&run.windows, "window", []string{"50/10s"},
		"LIMIT/PER, such as 100/1m; repeat it for more windows, which must all admit")
	f.StringVar(&run.rules, "rules", "", "rules file, in place of --window and --algorithms")
	f.StringSliceVar(&run.algorithms, "algorithms", nil,
		"which to compare, separated by commas: "+strings.Join(compare.Names(), ", ")+" (default all)")
	f.BoolVar(&run.asJSON, "json", false, "print the figures as JSON")
	return cmd
}

type compareRun struct {
	form       logForm  // of a log
	rules      string   // file; empty: the windows and algorithms below
	windows    []string // LIMIT/PER
	algorithms []string
	asJSON     bool
}

func runCompare(cmd *cobra.Command, c settings.Redis, run compareRun) error {
	if run.rules != "" {
		return rollOut(cmd, run)
	}
	if err := compare.CheckNames(run.algorithms); err != nil {
		return settings.UsageErrorf("--algorithms: %w", err)
	}
	limits, err := compareWindows(run.windows)
	if err != nil {
		return err
	}
	traces, err := readTraces(cmd, run, limits)
	if err != nil {
		return interrupted(cmd, err)
	}
	cfg := compare.Config{Algorithms: run.algorithms, Windows: limits}
	if compare.NeedRedis(run.algorithms) {
		client, name, closeAll, err := measuredRedis(cmd.Context(), c, 0)
		if err != nil {
			return interrupted(cmd, err)
		}
		defer closeAll()
		cfg.Redis, cfg.RedisName = client, name
	}
	var report compare.Report
	for _, t := range traces {
		bar := newBar(cmd.ErrOrStderr(), "comparing", 100)
		cfg.Progress = func(done, total int) { _ = bar.Set(100 * done / total) } // an error only spoils the bar
		c, err := compare.Run(cmd.Context(), cfg, t)
		_ = bar.Finish()
		if err != nil {
			return interrupted(cmd, err)
		}
		report.Comparisons = append(report.Comparisons, c)
	}
	return printTraced(cmd, &report, run.asJSON, traces[0])
}

// printTraced prints a report. The exit code is 1 if lines of the trace could not be read.
func printTraced(cmd *cobra.Command, report interface{ WriteText(io.Writer) error }, asJSON bool,
	t compare.Trace) error {
	if err := printReport(cmd, report, asJSON, "  "); err != nil || t.Rejected == 0 {
		return err
	}
	return exitError{code: 1}
}

// rollOut runs a trace through the rules of a file.
func rollOut(cmd *cobra.Command, run compareRun) error {
	for _, flag := range []string{"boundary", "window", "algorithms", "redis"} {
		if cmd.Flags().Changed(flag) {
			return settings.UsageErrorf("--rules and --%s: expected one of them", flag)
		}
	}
	rules, err := windows.Load(run.rules, windows.WithoutHashKey)
	if err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	for _, r := range rules.List() {
		for _, w := range r.Windows {
			if logParts[w.Distinct] > 0 && !slices.Contains(run.form.values, w.Distinct) {
				run.form.values = append(run.form.values, w.Distinct)
			}
		}
	}
	traces, err := readTraces(cmd, run, nil)
	if err != nil {
		return interrupted(cmd, err)
	}
	out, err := compare.RollOut(cmd.Context(), rules, traces[0])
	if err != nil {
		return err
	}
	return printTraced(cmd, out, run.asJSON, traces[0])
}

// compareWindows reads the rule's windows, each LIMIT/PER.
func compareWindows(given []string) ([]windows.Window, error) {
	var list []windows.Window
	for _, text := range given {
		left, right, _ := strings.Cut(text, "/")
		limit, err := strconv.ParseInt(left, 10, 64)
		per, perErr := time.ParseDuration(right)
		if err != nil || perErr != nil {
			return nil, settings.UsageErrorf("--window is %q: expected LIMIT/PER such as 100/1m", text)
		}
		one := windows.Window{Limit: limit, Per: per}
		if err := validWindows(one); err != nil {
			return nil, settings.UsageErrorf("--window %s: %w", text, err)
		}
		list = append(list, one)
	}
	if err := validWindows(list...); err != nil {
		return nil, settings.UsageErrorf("--window %s: %w", strings.Join(given, " --window "), err)
	}
	return list, nil
}

// validWindows returns the error that a rules file with these windows would get.
func validWindows(list ...windows.Window) error {
	_, err := compare.RuleOf("", list)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), `rule "compare": `)) // no user wrote that rule
	}
	return nil
}

// readTraces reads the traces of the one flag that names some. limits are the windows that each request must fit.
func readTraces(cmd *cobra.Command, run compareRun, limits []windows.Window) ([]compare.Trace, error) {
	f := cmd.Flags()
	var given []string
	for _, name := range []string{"boundary", "clf", "trace"} {
		if f.Changed(name) && f.Lookup(name).Value.String() != "false" {
			given = append(given, name)
		}
	}
	if len(given) != 1 {
		what := "no trace"
		if len(given) > 1 {
			what = "--" + strings.Join(given, " and --")
		}
		return nil, settings.UsageErrorf("%s: want one of --boundary, --clf FILE and --trace FILE", what)
	}
	if given[0] != "clf" && f.Changed("key") {
		return nil, settings.UsageErrorf("--key and --%s: it is for --clf", given[0])
	}
	if given[0] == "boundary" {
		if len(limits) > 1 {
			return nil, settings.UsageErrorf("--boundary with %d windows: expected one", len(limits))
		}
		traces, err := compare.Boundary(limits[0])
		if err != nil {
			err = settings.UsageError{Err: err}
		}
		return traces, err
	}
	if err := run.form.validate(); err != nil {
		return nil, err
	}
	t, err := readTrace(cmd, f.Lookup(given[0]).Value.String(), run.form, given[0] == "clf", limits)
	if err == nil && len(t.Requests) == 0 {
		err = fmt.Errorf("%s: it has no request", t.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", given[0], err)
	}
	return []compare.Trace{t}, nil
}

// readTrace reads a log, or a file of requests; "-" is standard input.
func readTrace(cmd *cobra.Command, path string, form logForm, isLog bool, limits []windows.Window) (compare.Trace,
	error) {
	in, name, err := openInput(cmd, path)
	if err != nil {
		return compare.Trace{}, err
	}
	defer in.Close()
	if isLog {
		return form.trace(name, in, cmd.ErrOrStderr())
	}
	smallest := int64(windows.MaxLimit)
	for _, w := range limits {
		smallest = min(smallest, w.Limit)
	}
	return compare.ReadTrace(name, in, func(key string, cost int64) error {
		if err := (api.Event{Key: key, Count: cost}).Validate(); err != nil {
			return err
		}
		if cost > smallest {
			return fmt.Errorf("cost %d is above the smallest limit, %d", cost, smallest)
		}
		return nil
	})
}

// openInput opens a file, or standard input for "-".
func openInput(cmd *cobra.Command, path string) (in io.ReadCloser, name string, err error) {
	if path == "-" {
		return interruptible(cmd.Context(), cmd.InOrStdin()), "stdin", nil
	}
	in, err = os.Open(path)
	return in, path, err
}
