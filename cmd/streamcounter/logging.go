package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"github.com/redis/go-redis/v9"
	"golang.org/x/term"
)

// newLogger writes for people on a terminal (tint: slog with colour, nothing
// else) and JSON elsewhere.
func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, blame("log-level", fmt.Errorf("%q: expected debug, info, warn or error", level))
	}
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	if isTerminal(w) {
		log = slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: "15:04:05.000"}))
	}
	redis.SetLogger(redisLog{log})
	return log, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
