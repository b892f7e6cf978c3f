package settings

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/english"
)

// UsageError marks Err as the error of a wrong command line, which has its own exit code.
type UsageError struct{ Err error }

// Error returns the text of Err.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e UsageError) Unwrap() error { return e.Err }

// UsageErrorf returns a UsageError with a formatted text, as fmt.Errorf does.
func UsageErrorf(format string, values ...any) error {
	return UsageError{Err: fmt.Errorf(format, values...)}
}

// Wrong returns the error for a wrong value of the setting name. why says what was expected.
func Wrong(name string, value any, why string) error {
	return UsageErrorf("--%s (%s) is %q: %s", name, EnvName(name), fmt.Sprint(value), why)
}

// Blame adds the name of the setting that caused err. It returns nil if err is nil.
func Blame(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s (%s): %w", name, EnvName(name), err)
}

// PortTaken describes a failed listen on addr, the value of the setting flag, so that the user knows what to change.
func PortTaken(flag string, addr string, err error) error {
	hint := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		hint = "; another process listens there: stop it, or give another address with --" + flag
	}
	return Blame(flag, fmt.Errorf("cannot listen on %s: %w%s", addr, err, hint))
}

// expected: a flag's type → what to write.
var expected = map[string]string{
	"int":      "expected a whole number",
	"int64":    "expected a whole number",
	"uint64":   "expected a whole number of at least 0",
	"float64":  "expected a number",
	"bool":     "expected true or false",
	"duration": "expected a duration such as 250ms, 10s or 5m",
	"level":    "expected debug, info, warn or error",
}

// FlagError rewords pflag's errors: the flag, its variable, the value and what to write. For a flag that does not
// exist, it names the nearest one that does. fs may be nil.
func FlagError(err error, fs *pflag.FlagSet) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := invalid.GetFlag()
		if why, ok := expected[f.Value.Type()]; ok {
			return UsageErrorf("%s is %q: %s", named(f), invalid.GetValue(), why)
		}
	}
	none, ok := errors.AsType[*pflag.NotExistError](err)
	if ok && none.GetSpecifiedShortnames() != "" {
		return UsageErrorf("%w; write -- before an argument that begins with -", err)
	}
	if ok && fs != nil {
		var known []string
		fs.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := english.Nearest(none.GetSpecifiedName(), known); near != "" {
			return UsageErrorf("%w; did you mean --%s?", err, near)
		}
	}
	return UsageError{Err: err}
}

// AsSet names the settings in an error's text as the user has set them. A variable of envoyproxy/ratelimit that has
// set a flag takes the flag's place. A variable that the command does not read is left out.
func AsSet(text string, fs *pflag.FlagSet) string {
	fs.VisitAll(func(f *pflag.Flag) {
		name := "--" + f.Name
		if variable := f.Annotations[ratelimitAnnotation]; variable != nil {
			name = variable[0]
		} else if f.Annotations[envAnnotation] != nil {
			return
		}
		text = strings.ReplaceAll(text, fmt.Sprintf("--%s (%s)", f.Name, EnvName(f.Name)), name)
	})
	return text
}

// named returns a flag with its environment variable, if it has one.
func named(f *pflag.Flag) string {
	if env := f.Annotations[envAnnotation]; env != nil {
		return fmt.Sprintf("--%s (%s)", f.Name, env[0])
	}
	return "--" + f.Name
}
