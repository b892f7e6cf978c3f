package settings

import (
	"io"
	"log/slog"

	"github.com/streamcounter/streamcounter/internal/logging"
)

// OpenLog returns the log of a process, which writes to w, and logs a warning for each variable of the environment
// that is ignored.
func (c *Config) OpenLog(w io.Writer) *slog.Logger {
	c.Level.Set(c.Log)
	log := logging.New(w, &c.Level, c.LogFormat)
	for _, warning := range c.warnings {
		log.Warn(warning)
	}
	return log
}
