package main

import (
	"github.com/spf13/cobra"
)

// newRoot builds the command tree. cobra, because its help, completion and
// flags are what people know from other tools.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "streamcounter",
		Short: "Exact sliding-window counts and limits on Redis Streams and NATS",
		Long: `streamcounter counts how often keys (clients, tenants, addresses) acted within
sliding windows. Producers append events to Redis, workers fold each of them
exactly once, decisions and alerts are pushed over NATS, and callers ask for an
atomic answer over HTTP.

Every flag can also be set by its environment variable, STREAMCOUNTER_ and the
flag's name in capitals; the flag wins.`,
		Example: `  streamcounter dev
  streamcounter append --format clf < access.log
  streamcounter check user:42 3`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newDev(), newServe(), newWork(), newAppend(), newCheck(), newKeys(), newWatch(), newCompare(),
		newBench(), newRules(), newSinks(), newDoctor(), newFunctions(), newVersion(), newHealth(), newRatelimit())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return plainFlagError(err, cmd.Flags()) })
	plainArgs(root)
	root.InitDefaultCompletionCmd()
	return root
}
