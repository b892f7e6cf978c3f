package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/settings"
)

func newKeys() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Show, reset, block, exempt or limit a key",
		Long: `Looks at keys and changes what they may do. Each command asks a running server
(--http). If the server has tokens, the commands that change something need one with
the scope admin.

For block, exempt, limit, tier, clear, unblock and history a KEY with * or ? is a
pattern, as in the match of a rule. One that ends in a network (ip:203.0.113.0/24,
ip:2001:db8::/32) means the addresses of the network. A \ before *, ?, / and \ means the
character itself. show and reset, like check, take the KEY as it is.`,
		Example: `  streamcounter keys show ip:203.0.113.9
  streamcounter keys reset user:42
  streamcounter keys block user:42 --for 1h --reason 'too many failed logins'
  streamcounter keys block ip:203.0.113.0/24 --for 1h --yes
  streamcounter keys limit 'tenant:acme:*' 500/1m --until 2026-12-01`,
	}
	cmd.AddCommand(newKeysShow(), newKeysReset(), newThrottled(), newHistory(), newTop())
	cmd.AddCommand(overrideCommands()...)
	return cmd
}

func newKeysShow() *cobra.Command {
	var values bool
	cmd := &cobra.Command{
		Use: "show KEY", Short: "Show how much of its limits a key has used, and its override",
		Example: "  streamcounter keys show ip:203.0.113.9\n  streamcounter keys show ip:203.0.113.9 --values",
	}
	path := func(args []string) string {
		if values {
			return keyPath(args[0]) + "?values=100"
		}
		return keyPath(args[0])
	}
	showAnswer(cmd, path, func(s api.KeyState) error {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "%s, rule %s\n", s.Key, cmp.Or(s.Rule, "none"))
		printWindows(out, s.Windows)
		printInForce(out, s.InForce)
		for _, shadow := range s.Shadow {
			fmt.Fprintf(out, "  rule %s (shadow, decides nothing):\n", shadow.Rule)
			printWindows(out, shadow.Windows)
		}
		if s.Override != nil {
			fmt.Fprintf(out, "  override: %s\n", overrideText(*s.Override))
		}
		printValues(out, s.Values)
		return nil
	})
	cmd.Flags().BoolVar(&values, "values", false,
		"also show the newest 100 values of each field that its rules count (scope admin)")
	return cmd
}

// showAnswer makes cmd request the path of its arguments and show the answer; with --json it prints the answer
// unchanged.
func showAnswer[A any](cmd *cobra.Command, path func(args []string) string, show func(answer A) error) {
	c := settings.New()
	var asJSON bool
	c.Flags(cmd, "http", "caller")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer A
		text, err := askFor(cmd, c, http.MethodGet, path(args), nil, &answer)
		if err != nil {
			return err
		}
		if asJSON {
			printJSON(cmd.OutOrStdout(), text)
			return nil
		}
		return show(answer)
	}
}

func printValues(out io.Writer, list []api.FieldValues) {
	for _, f := range list {
		hashed := ""
		if f.Hashed {
			hashed = ", hashed"
		}
		fmt.Fprintf(out, "  values of %q%s, last seen:\n", f.Field, hashed)
		for _, v := range f.Values {
			fmt.Fprintf(out, "    %s  %s\n", timeText(v.LastSeenMs), v.Value)
		}
		if len(f.Values) == 0 {
			fmt.Fprintln(out, "    none")
		}
	}
}

func newKeysReset() *cobra.Command {
	c := settings.New()
	cmd := &cobra.Command{
		Use: "reset KEY", Short: "Forget what a key has used, and release it",
		Example: "  streamcounter keys reset user:42",
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer struct {
				Key   string
				Reset bool
			}
			if _, err := askFor(cmd, c, http.MethodDelete, keyPath(args[0]), nil, &answer); err != nil {
				return err
			}
			if _, several, err := api.ParseTarget(args[0]); !answer.Reset && (several != "" || err != nil) {
				return fmt.Errorf("%s is no key that has a count, and a pattern or a network cannot be reset", args[0])
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is reset\n", args[0])
			return nil
		},
	}
	c.Flags(cmd, "http", "caller")
	return cmd
}

func keyPath(key string) string { return "/v1/keys/" + url.PathEscape(key) }
