package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// checkArguments compares the arguments of a command with its Use, such as "check KEY [COST]", and names the argument
// that is missing or not expected. For a command that does not exist, it names the nearest one that does.
func checkArguments(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	if len(args) < len(names) && !strings.HasPrefix(names[len(args)], "[") {
		return settings.UsageErrorf("missing %s. Usage: %s", strings.TrimSuffix(names[len(args)], "..."), usage(cmd))
	}
	if len(names) > 0 && names[0] == "KEY" {
		if _, _, err := api.ParseTarget(args[0]); err != nil {
			if bad := api.ValidateKey(args[0]); bad != nil {
				return settings.UsageError{Err: bad}
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
	return settings.UsageErrorf("unexpected argument %q%s. Usage: %s", redact.Login(extra), hint, usage(cmd))
}

// flagError returns the error of a wrong flag. If the command before it does not exist, that is the mistake.
func flagError(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return unknownCommand(cmd, before[0])
	}
	return settings.FlagError(err, cmd.Flags())
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, sub := range cmd.Commands() {
		known = append(known, sub.Name())
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if near := english.Nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return settings.UsageErrorf("unknown command %q of %s; %s", redact.Login(name), cmd.CommandPath(), hint)
}

func usage(cmd *cobra.Command) string {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	return strings.TrimSpace(cmd.CommandPath() + " " + arguments)
}
