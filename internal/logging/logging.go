// Package logging makes logs for people and for machines, with bounded lines. There is no other file.
package logging

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// New returns a log that writes to w: on a terminal for people (tint: slog with colour, nothing else), otherwise
// JSON, unless the format says something else.
func New(w io.Writer, l slog.Leveler, format string) *slog.Logger {
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: shortened}))
	switch {
	case format == "text":
		log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: shortened}))
	case format == "" && IsTerminal(w):
		log = slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000",
			NoColor: os.Getenv("NO_COLOR") != "", ReplaceAttr: shortened}))
	}
	return log
}

// maxLogged bounds a value in the log, in bytes: errors can contain text from another server.
const maxLogged = 2048

// shortened bounds the texts of a line. Of several joined errors it keeps only the first: those of different
// partitions usually say the same.
func shortened(_ []string, a slog.Attr) slog.Attr {
	text := ""
	if a.Value.Kind() == slog.KindString {
		text = a.Value.String()
	} else if err, ok := a.Value.Any().(error); ok {
		if text = err.Error(); isJoin(err) {
			first, rest, _ := strings.Cut(text, "\n")
			text = fmt.Sprintf("%s (and %d more)", first, 1+strings.Count(rest, "\n"))
			a.Value = slog.StringValue(text)
		}
	}
	if len(text) > maxLogged {
		a.Value = slog.StringValue(strings.ToValidUTF8(text[:maxLogged], "") + "…")
	}
	return a
}

// isJoin reports whether err joins several errors (errors.Join), in contrast to an error that wraps its causes.
func isJoin(err error) bool {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return false
	}
	list := many.Unwrap()
	if len(list) == 1 {
		return isJoin(list[0])
	}
	return err.Error() == errors.Join(list...).Error()
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
