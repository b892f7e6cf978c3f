package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What another server said fills no log, whatever its form.
func TestLogLinesAreBounded(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		long := strings.Repeat("é", 1<<20)
		newLogger(&out, slog.LevelInfo, format).Warn("failed", "error", errors.New(long), "text", long)
		if out.Len() > 3*maxLogged || !strings.Contains(out.String(), "éé") {
			t.Errorf("%s: a line of %d bytes", format, out.Len())
		}
	}
}
