package main

import (
	"io"
	"log/slog"
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
