// Command instructions counts what Redis executes for an operation, under
// callgrind: the counts do not depend on how busy the machine is, as times do.
//
//	go run ./internal/bench/instructions           # prints the counts; exit code 1 where one grew by over a tenth
//	go run ./internal/bench/instructions -only "sliding-log: ,event"    # some, as CI does
//	go run ./internal/bench/instructions -update   # takes them as the new figures
//
// It needs valgrind and redis-server. The figures hold for one build of Redis (they name
// it): under another, the ratio to GCRA says what there is to say, and that is compared.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
)

// figures are what the last -update found.
type figures struct {
	Redis string             `json:"redis"`
	Each  map[string]float64 `json:"instructions"`
}

const tolerance = 1.1

func main() {
	path := flag.String("figures", "internal/bench/instructions/figures.json", "what the counts are compared with")
	update := flag.Bool("update", false, "write the counts to the file in place of comparing them")
	only := flag.String("only", "", "count only operations whose names begin with one of these, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *path, *only, *update); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, only string, update bool) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	wanted := func(name string) bool {
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		return name == yardstick || slices.ContainsFunc(strings.Split(only, ","), begins)
	}
	ops, err := operations(ctx, s.client, wanted)
	if err != nil {
		return err
	}
	now := figures{Each: map[string]float64{}}
	if now.Redis, err = s.version(ctx); err != nil {
		return err
	}
	for _, op := range ops {
		if !wanted(op.name) {
			continue
		}
		if now.Each[op.name], err = s.count(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		fmt.Printf("%-40s %9.0f instructions\n", op.name, now.Each[op.name])
	}
	if update && only != "" {
		return errors.New("-update writes all figures: leave -only out")
	}
	if update {
		text, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(path, append(text, '\n'), 0o644)
	}
	return compare(path, now)
}

// compare says what grew. Figures of another build of Redis are scaled by the yardstick.
func compare(path string, now figures) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var old figures
	if err := json.Unmarshal(text, &old); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	scale := 1.0
	if old.Redis != now.Redis && old.Each[yardstick] > 0 {
		scale = now.Each[yardstick] / old.Each[yardstick]
		fmt.Printf("figures are of Redis %s, this is %s: compared by the ratio to %s\n", old.Redis, now.Redis,
			yardstick)
	}
	var grown []error
	for name, n := range now.Each {
		switch was, known := old.Each[name]; {
		case !known:
			grown = append(grown, fmt.Errorf("%s: %s has no figure; -update writes one", path, name))
		case n > was*scale*tolerance:
			grown = append(grown, fmt.Errorf("%s: %.0f instructions, %.0f in %s: grew by %.0f %%", name, n, was*scale,
				path, 100*(n/was/scale-1)))
		}
	}
	return errors.Join(grown...)
}
