package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/logging"
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
                user:<user>. The requests of one second are spread evenly over it
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

// compareRun holds the flags of compare.
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
	var list []*compare.Comparison
	for _, t := range traces {
		var hide func()
		cfg.Progress, hide = comparing(cmd)
		c, err := compare.Run(cmd.Context(), cfg, t)
		hide()
		if err != nil {
			return interrupted(cmd, err)
		}
		list = append(list, c)
	}
	if run.asJSON {
		err = compare.WriteJSON(cmd.OutOrStdout(), list)
	} else {
		err = compare.WriteTables(cmd.OutOrStdout(), list)
	}
	if err != nil {
		return err
	}
	return rejected(traces)
}

// rejected returns the exit code if lines could not be read.
func rejected(traces []compare.Trace) error {
	for _, t := range traces {
		if t.Rejected > 0 {
			return exitError{code: 1}
		}
	}
	return nil
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
	write := out.WriteTable
	if run.asJSON {
		write = out.WriteJSON
	}
	if err := write(cmd.OutOrStdout()); err != nil {
		return err
	}
	return rejected(traces)
}

// interrupted turns an error that Ctrl-C caused into its exit code. If err joins other errors too, such as keys that
// could not be removed, they are still reported.
func interrupted(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok && len(several.Unwrap()) > 1 {
		return exitError{130, err}
	}
	return exitError{code: 130}
}

// comparing shows progress on a terminal; hide removes it.
func comparing(cmd *cobra.Command) (show func(done, total int), hide func()) {
	if !logging.IsTerminal(cmd.ErrOrStderr()) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(cmd.ErrOrStderr()),
		progressbar.OptionSetDescription("comparing"),
		progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	return func(done, total int) {
		if bar.GetMax() != total {
			bar.ChangeMax(total)
		}
		_ = bar.Set(done) // only the picture is at stake
	}, func() { _ = bar.Finish() }
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
	const choose = "want one of --boundary, --clf FILE and --trace FILE"
	switch len(given) {
	case 0:
		return nil, settings.UsageErrorf("no trace: %s", choose)
	case 1:
	default:
		return nil, settings.UsageErrorf("--%s: %s", strings.Join(given, " and --"), choose)
	}
	if given[0] != "clf" && f.Changed("key") {
		return nil, settings.UsageErrorf("--key and --%s: it is for --clf", given[0])
	}
	if given[0] == "boundary" {
		if len(limits) > 1 {
			return nil, settings.UsageErrorf("--boundary with %d windows: expected one", len(limits))
		}
		return boundaryTraces(limits[0])
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

func boundaryTraces(w windows.Window) ([]compare.Trace, error) {
	if w.Limit > compare.MaxBoundaryLimit {
		return nil, settings.UsageErrorf(
			"--window has the limit %d: --boundary sends bursts of that many requests, want at most %d", w.Limit,
			compare.MaxBoundaryLimit)
	}
	if w.Per < compare.MinBoundaryWindow {
		return nil, settings.UsageErrorf("--window has the length %s: --boundary wants at least %s", w.Per,
			compare.MinBoundaryWindow)
	}
	return compare.Boundary(w), nil
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
		rejected := 0
		return compare.ReadLog(name, in, form.timed, func(n int, err error) {
			rejected++
			reportRejected(cmd.ErrOrStderr(), rejected, fmt.Sprintf("%s:%d", name, n), err)
		})
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

// interruptible ends a read when ctx ends. A read of standard input cannot be ended, so the goroutine may outlive
// ctx.
func interruptible(ctx context.Context, in io.Reader) io.ReadCloser {
	out, end := io.Pipe()
	go func() {
		_, err := io.Copy(end, in)
		end.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { end.CloseWithError(ctx.Err()) })
	return out
}
