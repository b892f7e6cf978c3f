package logging

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// The text of another server cannot make long log lines, whatever its form.
func TestLogLinesAreBounded(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		long := strings.Repeat("é", 1<<20)
		New(&out, slog.LevelInfo, format).Warn("failed", "error", errors.New(long), "text", long)
		if out.Len() > 3*maxLogged || !strings.Contains(out.String(), "éé") {
			t.Errorf("%s: a line of %d bytes", format, out.Len())
		}
	}
}

// The errors of partitions usually say the same: a line has only the first. An error with its cause is one error.
func TestLogLinesOfSeveralErrors(t *testing.T) {
	one, cause := errors.New("partition 0: refused"), errors.New("refused")
	for err, want := range map[error]string{
		errors.Join(one, errors.New("partition 1: refused"), cause): "partition 0: refused (and 2 more)\n",
		errors.Join(errors.Join(one, errors.Join(cause, cause))):    "partition 0: refused (and 2 more)\n",
		errors.Join(errors.New("two\nlines")):                       `two\nlines`,
		fmt.Errorf("%w: %w", one, cause):                            "partition 0: refused: refused\n",
		errors.New("two\nlines"):                                    `two\nlines`,
	} {
		var out bytes.Buffer
		if New(&out, slog.LevelInfo, "text").Warn("failed", "error", err); !strings.Contains(
			strings.ReplaceAll(out.String(), `"`, ""), "error="+want) {
			t.Errorf("%q: want %q", out.String(), want)
		}
	}
}
