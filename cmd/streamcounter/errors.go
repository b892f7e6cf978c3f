package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/english"
)

// usageError is the error of a wrong command line. It adds nothing to the text of err.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }

func (e usageError) Unwrap() error { return e.err }

// badUsage is the error of a wrong command line.
func badUsage(format string, values ...any) error {
	return usageError{err: fmt.Errorf(format, values...)}
}

// wrong is the error of a setting's value.
func wrong(name string, value any, why string) error {
	return badUsage("--%s (%s) is %q: %s", name, envName(name), fmt.Sprint(value), why)
}

// blame says which setting an error came from; nil stays nil.
func blame(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s (%s): %w", name, envName(name), err)
}

// portTaken words a failed listen so that the person knows what to change.
func portTaken(flag string, addr string, err error) error {
	hint := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		hint = "; another process listens there: stop it, or give another address with --" + flag
	}
	return blame(flag, fmt.Errorf("cannot listen on %s: %w%s", addr, err, hint))
}

// expected: a flag's type → what to write.
var expected = map[string]string{
	"int":      "expected a whole number",
	"int64":    "expected a whole number",
	"uint64":   "expected a whole number of at least 0",
	"float64":  "expected a number",
	"bool":     "expected true or false",
	"duration": "expected a duration above zero such as 250ms, 10s or 5m",
	"level":    "expected debug, info, warn or error",
}

// plainFlagError words pflag's errors: the flag, its variable, the value and what
// to write; for a flag that does not exist the nearest that does. fs may be nil.
func plainFlagError(err error, fs *pflag.FlagSet) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		if why, ok := expected[f.Value.Type()]; ok {
			return badUsage("%s is %q: %s", named(f), invalid.GetValue(), why)
		}
	}
	var none *pflag.NotExistError
	if errors.As(err, &none) && fs != nil && none.GetSpecifiedShortnames() == "" {
		var known []string
		fs.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := english.Nearest(none.GetSpecifiedName(), known); near != "" {
			return badUsage("%w; did you mean --%s?", err, near)
		}
	}
	return usageError{err: err}
}

// named is a flag with its environment variable, if it has one.
func named(f *pflag.Flag) string {
	if env := f.Annotations[envAnnotation]; env != nil {
		return fmt.Sprintf("--%s (%s)", f.Name, env[0])
	}
	return "--" + f.Name
}
