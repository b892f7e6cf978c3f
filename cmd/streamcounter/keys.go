package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
)

func newKeys() *cobra.Command {
	c := newConfig()
	var asJSON, reset bool
	cmd := &cobra.Command{
		Use:   "keys KEY",
		Short: "Show, reset, block, exempt or limit a key",
		Long: `Shows how much of its limits a key has used. Its commands are the operator's hand
on single keys: each asks a running server (--http), and needs a token of the scope
admin where the server has tokens. A KEY with * or ? is a pattern, as in the match of a
rule, and one that ends in a network (ip:203.0.113.0/24, ip:2001:db8::/32) is for its
addresses; a \ before *, ? and / means the characters themselves.`,
		Example: `  streamcounter keys ip:203.0.113.9
  streamcounter keys user:42 --reset
  streamcounter keys block user:42 --for 1h --reason 'too many failed logins'
  streamcounter keys block ip:203.0.113.0/24 --for 1h --yes
  streamcounter keys limit 'tenant:acme:*' 500/1m --until 2026-12-01`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			method := http.MethodGet
			if reset {
				method = http.MethodDelete
			}
			status, body, err := ask(cmd.Context(), c, method, "/v1/keys/"+url.PathEscape(args[0]))
			if err != nil {
				return err
			}
			if status != http.StatusOK {
				return problemFrom(status, body)
			}
			if asJSON {
				printJSON(cmd.OutOrStdout(), body)
				return nil
			}
			if method == http.MethodDelete {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is reset\n", args[0])
				return nil
			}
			var s api.KeyState
			if err := json.Unmarshal(body, &s); err != nil {
				return fmt.Errorf("reading the answer: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s, rule %s\n", s.Key, cmp.Or(s.Rule, "none"))
			printWindows(cmd.OutOrStdout(), s.Windows)
			printPenalty(cmd.OutOrStdout(), s.Penalty)
			for _, shadow := range s.Shadow {
				fmt.Fprintf(cmd.OutOrStdout(), "  rule %s (shadow, decides nothing):\n", shadow.Rule)
				printWindows(cmd.OutOrStdout(), shadow.Windows)
			}
			if s.Override != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "  override: %s\n", overrideText(*s.Override))
			}
			return nil
		},
	}
	c.flags(cmd, "http", "caller")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's answer")
	cmd.Flags().BoolVar(&reset, "reset", false, "set the key's counts to zero and end its levels")
	cmd.AddCommand(overrideCommands()...)
	return cmd
}
