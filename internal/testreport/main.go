// Command testreport runs go test with the arguments it is given, prints what
// go test prints without -v, then which tests did not run, grouped by reason: go
// test alone does not show the reason of a test that was skipped in a package
// that passes. It fails where go test does.
//
//	go run ./internal/testreport ./...
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(2)
	}
	reportErr := report(out, os.Stdout)
	if err := cmd.Wait(); err != nil {
		os.Exit(max(1, cmd.ProcessState.ExitCode()))
	}
	if reportErr != nil {
		fmt.Fprintln(os.Stderr, "testreport:", reportErr)
		os.Exit(2)
	}
}

// event is one line of go test -json (go doc test2json).
type event struct{ Action, Package, Test, Output string }

// report reads the output of go test -json and writes to w: what packages print
// themselves as it comes, what a test printed if it failed, and a summary of the
// tests that were skipped.
func report(r io.Reader, w io.Writer) error {
	type test struct{ pkg, name string }
	printed := map[test]string{}
	skipped := map[string]int{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(w, "%s", line) // what is no test's, such as a crash of the toolchain
			continue
		}
		t := test{e.Package, e.Test}
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Test == "" && e.Output != "PASS\n":
			fmt.Fprint(w, e.Output)
		case e.Action == "output":
			printed[t] += e.Output
		case e.Action == "fail":
			fmt.Fprint(w, printed[t])
			delete(printed, t)
		case e.Action == "skip" && e.Test != "":
			skipped[reason(printed[t])]++
			delete(printed, t)
		case e.Action == "pass":
			delete(printed, t)
		}
	}
	// A package that crashed or ran out of time ends its tests with no result.
	for _, t := range slices.SortedFunc(maps.Keys(printed),
		func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) }) {
		fmt.Fprint(w, printed[t])
	}
	summarize(w, skipped)
	return nil
}

// reason is what a skipped test logged last, without its place.
func reason(printed string) string {
	last := "no reason given"
	for line := range strings.Lines(printed) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if file, rest, ok := strings.Cut(line, ".go:"); ok && !strings.Contains(file, " ") {
			if _, text, ok := strings.Cut(rest, ": "); ok {
				line = text
			}
		}
		last = line
	}
	return last
}

// summarize lists the reasons, the most frequent first.
func summarize(w io.Writer, skipped map[string]int) {
	if len(skipped) == 0 {
		fmt.Fprintln(w, "\nNo test was skipped.")
		return
	}
	total := 0
	for n := range maps.Values(skipped) {
		total += n
	}
	fmt.Fprintf(w, "\n%d tests were skipped:\n", total)
	byCount := func(a, b string) int { return cmp.Or(skipped[b]-skipped[a], cmp.Compare(a, b)) }
	for _, why := range slices.SortedFunc(maps.Keys(skipped), byCount) {
		fmt.Fprintf(w, "%6d  %s\n", skipped[why], why)
	}
}
