package main

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/lua"
)

func newFunctions() *cobra.Command {
	cmd := &cobra.Command{Use: "functions", Short: "Load the library of Redis Functions, or print it",
		Long: `The code that runs inside Redis is one library of Redis Functions. A process loads
it if its user may. With these commands an operator loads it, so no process needs the
right to (docs/security.md). The library's name contains a hash of its text, so two
versions can run side by side. doctor --prune removes old ones.`,
		Example: `  streamcounter functions load --redis redis://admin:PASSWORD@redis:6379
  streamcounter functions show`}
	cmd.AddCommand(newFunctionsLoad(), newFunctionsShow())
	return cmd
}

func newFunctionsLoad() *cobra.Command {
	c := settings.New()
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Load this version's library on the server, or on all masters of a Cluster",
		Long: `Loads this version's library on the server, or on all masters of a Cluster, and
prints its name. If it is loaded already, nothing changes. A server without functions
is an error; calls use EVALSHA there, and need nothing.`,
		Example: "  streamcounter functions load --redis redis://admin:PASSWORD@redis:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRedis(cmd, c, func(client redis.UniversalClient) error {
				err := lua.NewCaller(client).Load(cmd.Context())
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), lua.Library().Name)
				}
				return err
			})
		},
	}
	c.Flags(cmd, "redis")
	return cmd
}

func newFunctionsShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show",
		Short:   "Print the text of this version's library, for FUNCTION LOAD",
		Example: "  streamcounter functions show | redis-cli -x FUNCTION LOAD",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), lua.Library().Text)
			return err
		},
	}
}

// withRedis connects to Redis for one command.
func withRedis(cmd *cobra.Command, c *settings.Config, do func(redis.UniversalClient) error) error {
	if err := settings.NotEmbedded("redis", c.Redis.URL); err != nil {
		return err
	}
	client, err := backend.ConnectRedis(cmd.Context(), c.Redis, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(client), client.Close())
}
