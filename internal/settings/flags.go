package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// setting is one line of the table in config.go: a flag, an environment variable (STREAMCOUNTER_ and the name) and
// the field of the config that they set.
type setting struct {
	name   string
	field  any // *string, *bool, *int, *time.Duration or *slog.Level
	usage  string
	secret bool // can contain a password, so it may also be in a file that STREAMCOUNTER_REDIS_FILE names
	zero   bool // 0 has a meaning, which usage describes
	most   int  // of a number; 0: no bound
}

// group is a set of settings that a command selects by one name.
type group struct {
	name     string
	settings []setting
}

// set makes a line of the table and sets the field to its default.
func set[T string | bool | int | time.Duration | slog.Level](field *T, name string, def T, usage string,
) setting {
	*field = def
	return setting{name: name, field: field, usage: usage}
}

func secret(s setting) setting { s.secret = true; return s }
func zero(s setting) setting   { s.zero = true; return s }

func atMost(most int, s setting) setting { s.most = most; return s }

const envPrefix = "STREAMCOUNTER_"

// EnvName returns the environment variable of a flag: STREAMCOUNTER_CHECK_TIMEOUT for check-timeout.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// envAnnotation marks a flag that has an environment variable.
const envAnnotation = "env"

// ratelimitAnnotation names the variable of envoyproxy/ratelimit that has set a flag.
const ratelimitAnnotation = "ratelimit"

// addTo makes the setting a flag. The environment can set it too, unless flagOnly is true. The present value of its
// field is the default.
func (s setting) addTo(fs *pflag.FlagSet, flagOnly bool) {
	usage := s.usage
	if !flagOnly {
		usage += " [" + EnvName(s.name) + "]"
	}
	switch p := s.field.(type) {
	case *string:
		fs.StringVar(p, s.name, *p, usage)
	case *bool:
		fs.BoolVar(p, s.name, *p, usage)
	case *int:
		fs.IntVar(p, s.name, *p, usage)
	case *time.Duration:
		fs.DurationVar(p, s.name, *p, usage)
	case *slog.Level:
		fs.Var(logLevel{p}, s.name, usage)
	}
	f := fs.Lookup(s.name)
	f.DefValue = shown(s.field)
	if !flagOnly {
		f.Annotations = map[string][]string{envAnnotation: {EnvName(s.name)}}
	}
}

// logLevel makes a level a flag; pflag has no type for it that help could name.
type logLevel struct{ *slog.Level }

func (l logLevel) Set(text string) error { return l.UnmarshalText([]byte(text)) }
func (l logLevel) Type() string          { return "level" }

var zeroUnits = regexp.MustCompile(`([a-z])(0[ms])+$`)

// durationText formats a duration as people write it: 10m, not 10m0s.
func durationText(d time.Duration) string { return zeroUnits.ReplaceAllString(d.String(), "$1") }

// shown returns the value of a field as people write it.
func shown(field any) string {
	switch p := field.(type) {
	case *string:
		return *p
	case *bool:
		return fmt.Sprint(*p)
	case *int:
		return fmt.Sprint(*p)
	case *time.Duration:
		return durationText(*p)
	case *slog.Level:
		return strings.ToLower(p.String())
	}
	panic(fmt.Sprintf("a setting cannot be a %T", field)) // an error in this program's own table
}

// validate refuses numbers and durations that have no meaning, and secrets that cannot be sent.
func (s setting) validate() error {
	least, above := 1, "above zero"
	if s.zero {
		least, above = 0, "of at least 0"
	}
	switch p := s.field.(type) {
	case *string:
		if s.secret && strings.ContainsFunc(*p, unicode.IsControl) {
			return Blame(s.name, errors.New("it has a control character, such as a line feed"))
		}
	case *int:
		if *p < least {
			return Wrong(s.name, *p, fmt.Sprintf("expected a whole number of at least %d", least))
		}
		if s.most > 0 && *p > s.most {
			return Wrong(s.name, *p, fmt.Sprintf("expected at most %d", s.most))
		}
	case *time.Duration:
		if *p < time.Duration(least) {
			return Wrong(s.name, shown(p), "expected a duration "+above+" such as 250ms, 10s or 5m")
		}
	}
	return nil
}

// Flags adds the settings of some groups, or single settings by their own names, to cmd as flags, and makes cmd load
// the configuration before it runs. Set defaults and FlagsOnly before this call.
func (c *Config) Flags(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		for _, s := range c.find(name) {
			s.addTo(cmd.Flags(), slices.Contains(c.FlagsOnly, name))
			c.used = append(c.used, s)
		}
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(cmd.Flags(), os.LookupEnv); err != nil {
			return UsageError{Err: err}
		}
		c.warnings = append(c.warnings, unknownVariables(os.Environ())...)
		if cmd.Flags().Lookup("log-level") == nil { // a command that logs has them in its log
			for _, warning := range c.warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "streamcounter: warning: "+warning)
			}
		}
		return nil
	}
}

func (c *Config) find(name string) []setting {
	for _, g := range c.groups {
		if g.name == name {
			return g.settings
		}
	}
	for _, g := range c.groups {
		if i := slices.IndexFunc(g.settings, func(s setting) bool { return s.name == name }); i >= 0 {
			return g.settings[i : i+1]
		}
	}
	panic("no setting and no group " + name) // a name in this program's own code
}

// load reads the settings that no flag set from the environment, and validates all of them. Its errors are those of a
// wrong command line.
func (c *Config) load(fs *pflag.FlagSet, lookUp func(string) (string, bool)) error {
	for _, s := range c.used {
		if fs.Lookup(s.name).Changed {
			continue
		}
		if fs.Lookup(s.name).Annotations[envAnnotation] == nil {
			c.ignore(s, lookUp)
			continue
		}
		value, err := s.fromEnvironment(lookUp)
		if err != nil {
			return err
		}
		if value == "" {
			continue
		}
		if err := fs.Set(s.name, value); err != nil {
			return FlagError(err, nil)
		}
	}
	return c.validate()
}

// ignore warns about a variable that another command would use. A command for trials must not use the servers of a
// deployment only because the environment of the shell names them.
func (c *Config) ignore(s setting, lookUp func(string) (string, bool)) {
	for _, name := range []string{EnvName(s.name), EnvName(s.name) + "_FILE"} {
		if value, _ := lookUp(name); value != "" {
			c.warnings = append(c.warnings, "the environment variable "+name+
				" is ignored: this command takes --"+s.name+" from the command line alone")
		}
	}
}

// fromEnvironment returns the variable's value, or the contents of the file that the _FILE variable of a secret
// names.
func (s setting) fromEnvironment(lookUp func(string) (string, bool)) (string, error) {
	name := EnvName(s.name)
	value, _ := lookUp(name)
	path, _ := lookUp(name + "_FILE")
	if !s.secret || path == "" {
		return value, nil
	}
	if value != "" {
		return "", fmt.Errorf("%s and %s_FILE are both set: expected one", name, name)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	if value = strings.TrimSpace(string(content)); value == "" {
		return "", fmt.Errorf("%s_FILE: the file %s is empty", name, path)
	}
	return value, nil
}
