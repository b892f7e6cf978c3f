package settings

import (
	"io"
	"log/slog"

	"github.com/streamcounter/streamcounter/internal/logging"
)

// OpenLog gives the log of a process, which writes to w, and says in it what nothing reads of the environment.
func (c *Config) OpenLog(w io.Writer) *slog.Logger {
	c.Level.Set(c.Log)
	log := logging.New(w, &c.Level, c.LogFormat)
	for _, warning := range c.warnings {
		log.Warn(warning)
	}
	return log
}
