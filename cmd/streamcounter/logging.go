package main

import (
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// openLog gives the log of a process, and says in it what nothing reads of the environment.
func (c *config) openLog(w io.Writer) *slog.Logger {
	c.level.Set(c.Log)
	log := newLogger(w, &c.level, c.LogFormat)
	for _, warning := range c.warnings {
		log.Warn(warning)
	}
	return log
}

// newLogger writes for people on a terminal (tint: slog with colour, nothing
// else) and JSON elsewhere, unless the format says otherwise.
func newLogger(w io.Writer, l slog.Leveler, format string) *slog.Logger {
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: shortened}))
	switch {
	case format == "text":
		log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: shortened}))
	case format == "" && isTerminal(w):
		log = slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000",
			NoColor: os.Getenv("NO_COLOR") != "", ReplaceAttr: shortened}))
	}
	redisLogger.to.Store(log)
	return log
}

// maxLogged bounds a value in the log, in bytes: errors can hold what another server said.
const maxLogged = 2048

// shortened bounds the texts of a line.
func shortened(_ []string, a slog.Attr) slog.Attr {
	text := ""
	if a.Value.Kind() == slog.KindString {
		text = a.Value.String()
	} else if err, ok := a.Value.Any().(error); ok {
		text = err.Error()
	}
	if len(text) > maxLogged {
		a.Value = slog.StringValue(strings.ToValidUTF8(text[:maxLogged], "") + "…")
	}
	return a
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
