package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"github.com/redis/go-redis/v9"
	"golang.org/x/term"
)

// newLogger writes for people on a terminal (tint: slog with colour, nothing
// else) and JSON elsewhere.
func newLogger(w io.Writer, l slog.Level) *slog.Logger {
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	if isTerminal(w) {
		log = slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000"}))
	}
	redis.SetLogger(redisLog{log})
	return log
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
