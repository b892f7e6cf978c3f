package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
)

// The figures in the docs are those of figures.json.
func TestFiguresAreDocumented(t *testing.T) {
	const path, begin, end = "../../../docs/performance.md", "<!-- instructions -->\n", "<!-- /instructions -->\n"
	page, err := os.ReadFile(path)
	testkit.Must(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	text, err := os.ReadFile("figures.json")
	testkit.Must(t, err)
	var f figures
	testkit.Must(t, json.Unmarshal(text, &f))
	want := documented(f)
	switch {
	case have == want:
	case *testkit.Update:
		testkit.Must(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o644))
	default:
		t.Errorf("%s does not have the figures of figures.json (go test ./internal/bench/instructions -run Documented "+
			"-update writes them)\nhave:\n%s\nwant:\n%s", path, have, want)
	}
}

func documented(f figures) string {
	hundreds := func(name string) string {
		n := int(math.Round(f.Each[name]/100)) * 100
		return fmt.Sprintf("%s,%03d", strconv.Itoa(n/1000), n%1000)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | check | beside GCRA | two windows | of 20 in a run | of 20 keys in a call | "+
		"denied |\n|---|---|---|---|---|---|---|\n")
	for _, algorithm := range lua.AlgorithmNames() {
		name := algorithm + ": check"
		if f.Each[name] == 0 {
			continue // not measured yet, which the command itself refuses
		}
		fmt.Fprintf(&b, "| `%s` | %s | %.2f | %s | %s | %s | %s |\n", algorithm, hundreds(name),
			f.Each[name]/f.Each[yardstick], hundreds(name+", two windows"), hundreds(name+", 20 in a run"),
			hundreds(name+", 20 keys in a call"), hundreds(name+" denied"))
	}
	fmt.Fprintf(&b, "\nA `GET` takes %s, a GCRA script %s, an event folded by itself %s, one of 500 in a fold %s "+
		"(appending and reading included).\n", hundreds("GET"), hundreds(yardstick), hundreds("event, 1 a fold"),
		hundreds("event, 500 a fold"))
	return b.String()
}
