package main

import (
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/settings"
)

// newRoot builds the command tree. It uses cobra, because people know its help, completion and flags from other
// tools.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "streamcounter",
		Short: "A distributed rate limiter: exact sliding windows on Redis, decisions over NATS",
		Long: `streamcounter is a distributed rate limiter. It counts how often keys (clients,
tenants, addresses) acted within sliding windows. Services ask over HTTP or gRPC
whether a key may go on. Producers append events to Redis, workers count each event
exactly once, and decisions and alerts are published over NATS.

A flag whose help names an environment variable, such as [STREAMCOUNTER_REDIS], can
also be set by it. The flag wins.`,
		Example: `  streamcounter dev
  streamcounter check user:42 3
  streamcounter append --redis redis://127.0.0.1:16379 --format clf < access.log`,
		Version:      thisBuild().String(),
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newDev(), newServe(), newWork(), newAppend(), newCheck(), newKeys(), newWatch(), newCompare(),
		newBench(), newRules(), newSinks(), newDoctor(), newFunctions(), newVersion(), newHealth(), newRatelimit(),
		newMan())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	groupFlags(root)
	finish(root)
	return root
}

// finish adds to a command, and to all below it, what every command has: a check of its arguments, and help if it
// does nothing without a subcommand.
func finish(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
	switch {
	case cmd.Name() == "help":
		cmd.Use = "help [COMMAND...]"
		cmd.RunE = helpOf
	case !cmd.Runnable():
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = checkArguments
}

// helpOf shows the help of the command that args name. cobra's own help command exits with 0 if there is no such
// command.
func helpOf(cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if err != nil {
		return settings.UsageError{Err: err}
	}
	if len(rest) > 0 {
		return unknownCommand(of, rest[0])
	}
	of.InitDefaultHelpFlag()
	of.InitDefaultVersionFlag()
	return of.Help()
}
