package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

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

// traceFlags are the kinds of traces.
var traceFlags = []string{"boundary", "clf", "trace"}

func readTraces(cmd *cobra.Command, run compareRun, limits []windows.Window) ([]compare.Trace, error) {
	f := cmd.Flags()
	var given []string
	for _, name := range traceFlags {
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
	smallest := int64(windows.MaxLimit)
	for _, w := range limits {
		smallest = min(smallest, w.Limit)
	}
	switch given[0] {
	case "boundary":
		if len(limits) > 1 {
			return nil, settings.UsageErrorf("--boundary with %d windows: expected one", len(limits))
		}
		return boundaryTraces(limits[0])
	case "clf":
		return logTrace(cmd, run)
	}
	return fileTrace(cmd, run.trace, smallest)
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

func logTrace(cmd *cobra.Command, run compareRun) ([]compare.Trace, error) {
	if err := run.form.validate(); err != nil {
		return nil, err
	}
	in, name, err := openInput(cmd, "clf", run.log)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	rejected := 0
	t, err := compare.ReadLog(name, in, run.form.timed, func(n int, err error) {
		rejected++
		reportRejected(cmd.ErrOrStderr(), rejected, fmt.Sprintf("%s:%d", name, n), err)
	})
	return needed("clf", t, err)
}

func fileTrace(cmd *cobra.Command, path string, smallest int64) ([]compare.Trace, error) {
	in, name, err := openInput(cmd, "trace", path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	t, err := compare.ReadTrace(name, in, func(key string, cost int64) error {
		if err := (api.Event{Key: key, Count: cost}).Validate(); err != nil {
			return err
		}
		if cost > smallest {
			return fmt.Errorf("cost %d is above the smallest limit, %d", cost, smallest)
		}
		return nil
	})
	return needed("trace", t, err)
}

func needed(flag string, t compare.Trace, err error) ([]compare.Trace, error) {
	if err == nil && len(t.Requests) == 0 {
		err = fmt.Errorf("%s: it has no request", t.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return []compare.Trace{t}, nil
}

// openInput opens the file that a flag names, or standard input for "-".
func openInput(cmd *cobra.Command, flag, path string) (in io.ReadCloser, name string, err error) {
	if path == "-" {
		return interruptible(cmd.Context(), cmd.InOrStdin()), "stdin", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("--%s: %w", flag, err)
	}
	return f, path, nil
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
