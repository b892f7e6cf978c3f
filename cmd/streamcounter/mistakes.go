package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/api"
)

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
		if near := nearest(none.GetSpecifiedName(), known); near != "" {
			return badUsage("%w; did you mean --%s?", err, near)
		}
	}
	return exitError{exitUsage, err}
}

// checkArguments compares the arguments of a command with its Use, such as "check KEY [COST]", and names the one
// that is missing or not expected; for a command that does not exist the nearest that does.
func checkArguments(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	if len(args) < len(names) && !strings.HasPrefix(names[len(args)], "[") {
		return badUsage("missing %s. Usage: %s", strings.TrimSuffix(names[len(args)], "..."), usage(cmd))
	}
	if len(names) > 0 && names[0] == "KEY" {
		if _, _, err := api.ParseTarget(args[0]); err != nil {
			if bad := api.ValidateKey(args[0]); bad != nil {
				return exitError{exitUsage, bad}
			}
		}
	}
	if len(args) <= len(names) || strings.Contains(cmd.Use, "...") {
		return nil
	}
	extra := args[len(names)]
	if cmd.HasSubCommands() {
		return unknownCommand(cmd, extra)
	}
	hint := ""
	if extra == "true" || extra == "false" {
		hint = "; write --FLAG=true or --FLAG=false"
	}
	// The argument may be a URL that lacks its flag.
	return badUsage("unexpected argument %q%s. Usage: %s", withoutSecret("", extra), hint, usage(cmd))
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, sub := range cmd.Commands() {
		known = append(known, sub.Name())
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if near := nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return badUsage("unknown command %q of %s; %s", withoutSecret("", name), cmd.CommandPath(), hint)
}

// usage is a command with its arguments.
func usage(cmd *cobra.Command) string {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	return strings.TrimSpace(cmd.CommandPath() + " " + arguments)
}

// named is a flag with its environment variable, if it has one.
func named(f *pflag.Flag) string {
	if env := f.Annotations[envAnnotation]; env != nil {
		return fmt.Sprintf("--%s (%s)", f.Name, env[0])
	}
	return "--" + f.Name
}

// serviceLink is a variable that Kubernetes gives to each container for each
// service of its namespace: of a service "streamcounter", STREAMCOUNTER_PORT,
// STREAMCOUNTER_SERVICE_HOST, STREAMCOUNTER_PORT_8080_TCP_ADDR and so on.
var serviceLink = regexp.MustCompile(`^STREAMCOUNTER_([A-Z0-9_]+_)?` +
	`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PORT|PROTO|ADDR))?)?)$`)

// othersVariable is the form of the variables that deploy/ gives to other programs:
// passwords in nats-permissions.conf, images in the compose file, and the tests'.
var othersVariable = regexp.MustCompile(`^STREAMCOUNTER_(NATS_[A-Z_]+_PASSWORD|IMAGE|TEST_[A-Z_]+)$`)

// unknownVariables gives a sentence for each STREAMCOUNTER_ variable that is no
// setting of any command.
func unknownVariables(environ []string) []string {
	var known []string
	for _, g := range newConfig().groups {
		for _, s := range g.settings {
			known = append(known, envName(s.name))
			if s.secret {
				known = append(known, envName(s.name)+"_FILE")
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
		if near := nearest(name, known); near != "" {
			text += "; did you mean " + near + "?"
		}
		out = append(out, text)
	}
	return out
}

// nearest gives the known word that name is most likely a mistyped form of, empty
// where none is within two letters inserted, left out or replaced.
func nearest(name string, known []string) string {
	best, distance := "", 3
	for _, word := range known {
		if d := editDistance(name, word); d < distance {
			best, distance = word, d
		}
	}
	return best
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
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
