package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/settings"
)

const exitDenied = 1

func newCheck() *cobra.Command {
	c := settings.New()
	var asJSON bool
	var mode string
	var values []string
	cmd := &cobra.Command{
		Use:   "check KEY [COST]",
		Short: "Ask whether a key may go on, and charge it if so",
		Long: `Asks a running server (--http) whether KEY may spend COST units (default 1), and
charges them if it may. --mode look charges nothing. --mode charge always charges, for
what has happened already.

Exit code: 0 allowed (--mode charge: within the limit), 1 denied (over the limit),
2 error.`,
		Example: `  streamcounter check user:42
  streamcounter check user:42 5 --json
  streamcounter check user:42 5 --mode look
  streamcounter check ip:10.0.0.1 --value user=alice
  streamcounter check user:42 && ./send-mail`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheck(cmd, c, args, url.Values{"value": values}, mode, asJSON)
		},
	}
	c.Flags(cmd, "http", "caller")
	cmd.Flags().StringVar(&mode, "mode", string(api.ModeTake),
		"take: charge if there is room; look: charge nothing; charge: always charge")
	cmd.Flags().StringArrayVar(&values, "value", nil,
		"FIELD=VALUE for a rule that counts different values; repeat it for more fields")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the server's answer")
	cmd.Annotations = exitTwo
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if none, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if cost := none.GetSpecifiedShortnames(); cost != "" && strings.Trim(cost, "0123456789.") == "" {
				return badCost("-" + cost)
			}
		}
		return settings.FlagError(err, cmd.Flags())
	})
	return cmd
}

func runCheck(cmd *cobra.Command, c *settings.Config, args []string, q url.Values, mode string, asJSON bool) error {
	q.Set("key", args[0])
	if len(args) == 2 {
		if _, err := api.ParseCount(args[1]); err != nil {
			return badCost(args[1])
		}
		q.Set("cost", args[1])
	}
	if cmd.Flags().Changed("mode") {
		if err := api.Mode(mode).Validate(); err != nil {
			return settings.UsageErrorf("--mode: %w", err)
		}
		q.Set("mode", mode)
	}
	status, body, err := ask(cmd.Context(), c, http.MethodGet, "/v1/check?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	if status == http.StatusTooManyRequests {
		status = http.StatusOK // a denial is an answer
	}
	var a api.CheckAnswer
	err = readAnswer(status, body, &a)
	if asJSON && json.Valid(body) { // an error of the server too
		printJSON(cmd.OutOrStdout(), body)
	}
	if err != nil {
		return err
	}
	if !asJSON {
		fmt.Fprintln(cmd.OutOrStdout(), answerText(a))
		printWindows(cmd.OutOrStdout(), a.Windows)
		printInForce(cmd.OutOrStdout(), a.InForce)
	}
	if !a.Allowed {
		return exitError{code: exitDenied}
	}
	return nil
}

// answerText returns what was decided, by which rule, and when to try again.
func answerText(a api.CheckAnswer) string {
	by := fmt.Sprintf("by rule %s (%s)", a.Rule, a.Source)
	switch {
	case a.Blocked():
		return "denied: " + blockText(a)
	case a.Source == api.SourcePolicy && a.Rule != "":
		return verdictWord(a.Allowed) + " without counting: " + a.Note
	case a.Note != "":
		return verdictWord(a.Allowed) + ": " + a.Note
	case a.Allowed:
		return "allowed " + by
	case a.Charged:
		return "charged and over the limit " + by + ", room again " + in(a.RetryAfterMs)
	}
	return "denied " + by + ", retry " + in(a.RetryAfterMs)
}

func badCost(text string) error {
	return settings.UsageErrorf("COST must be a whole number from 1 to %s, got %q", english.Number(api.MaxCount), text)
}

func verdictWord(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
