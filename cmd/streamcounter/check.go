package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
)

// exitDenied is the exit code of check where the answer is no.
const exitDenied = 1

func newCheck() *cobra.Command {
	c := newConfig()
	var asJSON bool
	var mode string
	cmd := &cobra.Command{
		Use:   "check KEY [COST]",
		Short: "Ask whether a key may spend now, and charge it if so",
		Long: "Asks a running server (--http) whether KEY may spend COST units (1 if not given) and charges " +
			"them if it may. With --mode look it charges nothing, with --mode charge it charges them in any case.\n" +
			"Exit code: 0 allowed (--mode charge: within the limit), 1 denied (it went over), 2 error.",
		Example: `  streamcounter check user:42
  streamcounter check user:42 5 --json
  streamcounter check user:42 5 --mode look
  streamcounter check user:42 && ./send-mail`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"key": {args[0]}}
			if len(args) == 2 {
				q.Set("cost", args[1])
			}
			if cmd.Flags().Changed("mode") {
				q.Set("mode", mode)
			}
			status, body, err := ask(cmd.Context(), c, http.MethodGet, "/v1/check?"+q.Encode())
			if err != nil {
				return err
			}
			if status != http.StatusOK && status != http.StatusTooManyRequests {
				return problemFrom(status, body)
			}
			var a api.CheckAnswer
			if err := json.Unmarshal(body, &a); err != nil {
				return fmt.Errorf("reading the answer: %w", err)
			}
			if asJSON {
				printJSON(cmd.OutOrStdout(), body)
			} else {
				switch {
				case a.Override == "block":
					fmt.Fprintf(cmd.OutOrStdout(), "denied: %s\n", blockText(a))
				case a.Note != "":
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", verdictWord(a.Allowed), a.Note)
				case a.Allowed:
					fmt.Fprintf(cmd.OutOrStdout(), "allowed by rule %s (%s)\n", a.Rule, a.Source)
				case a.Charged:
					fmt.Fprintf(cmd.OutOrStdout(), "over the limit of rule %s (%s) and charged, room again after %s\n",
						a.Rule, a.Source, millis(a.RetryAfterMs))
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "denied by rule %s (%s), retry after %s\n", a.Rule, a.Source,
						millis(a.RetryAfterMs))
				}
				printWindows(cmd.OutOrStdout(), a.Windows)
				printPenalty(cmd.OutOrStdout(), a.Penalty)
			}
			if !a.Allowed {
				return exitError{code: exitDenied}
			}
			return nil
		},
	}
	c.flags(cmd, "http", "caller")
	cmd.Flags().StringVar(&mode, "mode", string(api.ModeTake),
		"take: charge if there is room; look: charge nothing; charge: it happened, charge in any case")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's answer")
	cmd.Annotations = exitTwo
	return cmd
}

func verdictWord(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
