package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/compare"
)

func newCompare() *cobra.Command {
	c := newConfig()
	c.Redis.URL = "embedded"
	var run compareRun
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Run a trace of requests through every algorithm, side by side",
		Long: `Asks every algorithm for the same requests, at the trace's own times (a day takes
seconds), and recounts naively what each of them admitted.

Traces (one of them):
  --boundary    two demonstrations of what an edge of the clock does
  --poisson     random arrivals: --rate, --requests, --keys, --max-cost, --seed
  --clf FILE    a web server's log in common or combined format; each line asks
                for one unit of the key ip:<remote host>. Its times are whole
                seconds: the requests of one are spread evenly over it
  --trace FILE  lines of MS KEY [COST]; MS is in milliseconds. Blank lines and
                those that begin with # are passed over
FILE may be - for standard input. Requests that are not in the order of time are
sorted, and the output says how many there were. A line of a log that cannot be
read is reported with its number and stops nothing; the exit code is then 1.

Algorithms: those that a rule can name, counted in Redis; "in-process", the
count that stands in while Redis is away; and "gcra", the generic cell rate
algorithm, as a baseline: no rule can name it, but many limiters are it. The
"oracle" admits exactly what the limit allows.

Each is compared with its own past. "Over" counts what it admitted although some
window then held more than its limit of what it had itself admitted; "under"
counts what it denied although every window had room. An algorithm that admits
too much early has less room later, so that its total can be that of the oracle
and still be wrong twice.

Keys are kept under a prefix sc-compare-… of the run's own, and removed when it
ends. An embedded Redis tells neither its CPU nor its memory: for those, give a
real one that nothing else uses.`,
		Example: `  streamcounter compare --boundary
  streamcounter compare --poisson --rate 20 --keys 3 --limit 100 --per 10s --redis redis://127.0.0.1:6379
  streamcounter compare --clf access.log --window 10/1s --window 100/1m --html report.html
  streamcounter compare --trace requests.txt --algorithms sliding-log,gcra --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCompare(cmd, c.Redis, run) },
	}
	c.flags(cmd, "redis")
	f := cmd.Flags()
	f.Bool("boundary", false, "trace: two bursts about an edge of the clock, in two ways")
	f.Bool("poisson", false, "trace: random arrivals")
	f.StringVar(&run.log, "clf", "", "trace: a web server's log (- for standard input)")
	f.StringVar(&run.trace, "trace", "", "trace: lines of MS KEY [COST] (- for standard input)")
	f.Int64Var(&run.limit, "limit", 50, "units that a window admits")
	f.DurationVar(&run.per, "per", 10*time.Second, "length of the window")
	f.StringArrayVar(&run.windows, "window", nil,
		"LIMIT/PER, such as 100/1m, instead of --limit and --per; give it again for more windows, which must all admit")
	f.StringSliceVar(&run.algorithms, "algorithms", nil,
		"which to compare, separated by commas: "+strings.Join(compare.Names(), ", ")+" (default all)")
	f.Float64Var(&run.poisson.Rate, "rate", 10, "with --poisson: requests per second, of all keys together")
	f.IntVar(&run.poisson.Requests, "requests", 2000, "with --poisson: how many requests")
	f.IntVar(&run.poisson.Keys, "keys", 1, "with --poisson: how many keys, drawn evenly")
	f.Int64Var(&run.poisson.MaxCost, "max-cost", 1, "with --poisson: costs are drawn evenly from 1 to this")
	f.Uint64Var(&run.poisson.Seed, "seed", 1, "with --poisson: the same seed gives the same trace")
	f.BoolVar(&run.asJSON, "json", false, "print the figures as JSON")
	f.StringVar(&run.page, "html", "", "also write a page with tables and plots to this file")
	return cmd
}

// compareRun is what the flags of compare say.
type compareRun struct {
	log, trace string // files
	limit      int64
	per        time.Duration
	windows    []string
	algorithms []string
	poisson    compare.Poisson
	asJSON     bool
	page       string // a file
}

func runCompare(cmd *cobra.Command, c redisConfig, run compareRun) error {
	algorithms := run.algorithms
	if err := compare.CheckNames(algorithms); err != nil {
		return fmt.Errorf("--algorithms: %w", err)
	}
	limits, err := compareWindows(cmd, run)
	if err != nil {
		return err
	}
	page, err := openPage(cmd, run.page)
	if err != nil {
		return err
	}
	defer page.discard()
	traces, err := readTraces(cmd, run, limits)
	if err != nil {
		return interrupted(cmd, err)
	}
	cfg := compare.Config{Algorithms: algorithms, Windows: limits}
	if compare.NeedRedis(algorithms) {
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
	if err := errors.Join(err, page.write(list, commandLine(cmd))); err != nil {
		return err
	}
	for _, t := range traces {
		if t.Rejected > 0 {
			return exitError{code: 1}
		}
	}
	return nil
}

// interrupted turns what follows from Ctrl-C into its exit code. What else went
// wrong, such as keys that could not be removed, is still said.
func interrupted(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok && len(several.Unwrap()) > 1 {
		return exitError{130, err}
	}
	return exitError{code: 130}
}

// comparing shows progress on a terminal; hide takes it away.
func comparing(cmd *cobra.Command) (show func(done, total int), hide func()) {
	if !isTerminal(cmd.ErrOrStderr()) {
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
