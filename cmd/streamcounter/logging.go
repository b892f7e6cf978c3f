package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"github.com/redis/go-redis/v9"
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
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	switch {
	case format == "text":
		log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
	case format == "" && isTerminal(w):
		log = slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000"}))
	}
	redis.SetLogger(redisLog{log})
	return log
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
