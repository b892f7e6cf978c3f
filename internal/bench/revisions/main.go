// Command revisions compares what operations cost under two revisions of this program: it builds
// both, runs the same benchmarks with each in turn, every time with a Redis of its own, and
// prints the ratios of new to old with their spread. Speeds drift from minute to minute, ratios of
// neighbouring runs hardly do.
//
//	go run ./internal/bench/revisions -old HEAD~5
//	go run ./internal/bench/revisions -old v0.1.0 -rounds 9 -bench "check --entries 10000 --duration 2s"
//
// The new one is what stands in the working directory. It needs git and redis-server. Read
// table.go next: what is compared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// defaults are the benchmarks without -bench: checks and folds by each of the two usual
// algorithms, and events through a worker.
var defaults = []string{
	"check fold --algorithm sliding-log,sliding-log-packed --entries 100 --duration 2s",
	"pipeline --rate 10000 --duration 5s",
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, "; ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	old := flag.String("old", "", "revision to compare with: a branch, tag or commit")
	rounds := flag.Int("rounds", 5, "how often each revision is measured")
	var benches list
	flag.Var(&benches, "bench",
		"arguments of `streamcounter bench`, without --redis and --json; may be given several times")
	flag.Parse()
	if *old == "" || *rounds < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if len(benches) == 0 {
		benches = defaults
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *old, *rounds, benches); err != nil {
		fmt.Fprintln(os.Stderr, "revisions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, old string, rounds int, benches []string) (err error) {
	dir, err := os.MkdirTemp("", "revisions")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := [2]string{filepath.Join(dir, "old"), filepath.Join(dir, "new")}
	if err := buildRevision(ctx, old, filepath.Join(dir, "tree"), programs[0]); err != nil {
		return err
	}
	if err := build(ctx, ".", programs[1]); err != nil {
		return err
	}
	t := newTable()
	for round := range rounds {
		for _, bench := range benches {
			for turn := range 2 {
				which := (turn + round) % 2 // neither is always the first
				name := [2]string{"old", "new"}[which]
				fmt.Fprintf(os.Stderr, "round %d of %d, %s: %s\n", round+1, rounds, name, bench)
				report, err := measure(ctx, dir, programs[which], strings.Fields(bench))
				if err != nil {
					return fmt.Errorf("%s, bench %s: %w", name, bench, err)
				}
				if err := t.add(which, report); err != nil {
					return err
				}
			}
		}
	}
	return t.print(os.Stdout)
}

// buildRevision builds a revision in a work tree of its own, which it removes again.
func buildRevision(ctx context.Context, revision, tree, program string) (err error) {
	if err := command(ctx, ".", "git", "worktree", "add", "--detach", tree, revision); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, command(context.WithoutCancel(ctx), ".", "git", "worktree", "remove", "--force", tree))
	}()
	return build(ctx, tree, program)
}

func build(ctx context.Context, tree, program string) error {
	return command(ctx, tree, "go", "build", "-trimpath", "-o", program, "./cmd/streamcounter")
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
