package main

import (
	"fmt"
	"io"

	"github.com/streamcounter/streamcounter/api"
)

// printInForce prints what is in force for a key besides its windows, on a line of its own.
func printInForce(w io.Writer, f api.InForce) {
	if p := f.Penalty; p != nil {
		fmt.Fprintf(w, "  penalty, step %d of %d, until %s\n", p.Step, p.Of, timeText(p.UntilMs))
	}
}

// inForceText words it as the end of a line.
func inForceText(f api.InForce) string {
	if p := f.Penalty; p != nil {
		return fmt.Sprintf(", penalty %d of %d", p.Step, p.Of)
	}
	return ""
}
