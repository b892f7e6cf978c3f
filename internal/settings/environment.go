package settings

import (
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/logging"
)

// serviceLink matches a variable that Kubernetes sets in each container for each service of its namespace: for a
// service "streamcounter", STREAMCOUNTER_PORT, STREAMCOUNTER_SERVICE_HOST, STREAMCOUNTER_PORT_8080_TCP_ADDR and so
// on.
var serviceLink = regexp.MustCompile(`^STREAMCOUNTER_([A-Z0-9_]+_)?` +
	`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PORT|PROTO|ADDR))?)?)$`)

// othersVariable matches the variables that deploy/ sets for other programs: passwords in nats-permissions.conf,
// images in the compose file, and the variables of the tests.
var othersVariable = regexp.MustCompile(`^STREAMCOUNTER_(NATS_[A-Z_]+_PASSWORD|IMAGE|TEST_[A-Z_]+)$`)

// unknownVariables returns a sentence for each STREAMCOUNTER_ variable that is not a setting of any command.
func unknownVariables(environ []string) []string {
	var known []string
	for _, g := range New().groups {
		for _, s := range g.settings {
			known = append(known, EnvName(s.name))
			if s.secret {
				known = append(known, EnvName(s.name)+"_FILE")
			}
		}
	}
	var out []string
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(known, name) ||
			serviceLink.MatchString(name) || othersVariable.MatchString(name) {
			continue
		}
		text := "the environment variable " + name + " is not a setting and is ignored"
		if near := english.Nearest(name, known); near != "" {
			text += "; did you mean " + near + "?"
		}
		out = append(out, text)
	}
	return out
}

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
