package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
)

func newHistory() *cobra.Command {
	var limit int
	var before string
	cmd := &cobra.Command{Use: "history KEY", Short: "Show what happened to a key: decisions, alerts, overrides",
		Long: `Shows what happened to a key, newest first: when it was throttled and released, its
alerts of the last 7 days, and who changed its override, when, and why. It says what is
left out: alerts if the server has no NATS, overrides if the token lacks the scope admin.`,
		Example: `  streamcounter keys history user:42
  streamcounter keys history user:42 --limit 1000 --json | jq .entries`}
	path := func(args []string) string {
		path := "/v1/history/" + url.PathEscape(args[0]) + "?limit=" + strconv.Itoa(limit)
		if before != "" {
			path += "&before=" + url.QueryEscape(before)
		}
		return path
	}
	showAnswer(cmd, path, func(h api.History) error {
		printHistory(cmd.OutOrStdout(), h)
		if several := h.Pattern + h.Network; several != "" { // the name of a key that `keys throttled` lists may be one
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is not one key. The history of the key with this name: "+
				"keys history %s\n", several, quote(api.TargetOfKey(several)))
		}
		for _, what := range h.LeftOut {
			fmt.Fprintln(cmd.ErrOrStderr(), "left out: "+what)
		}
		if h.Next != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "older: --before "+quote(h.Next))
		}
		return nil
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum entries, up to 1,000")
	cmd.Flags().StringVar(&before, "before", "", "show the entries before this position, printed as 'older'")
	return cmd
}

func printHistory(out io.Writer, h api.History) {
	for _, e := range h.Entries {
		fmt.Fprintf(out, "%s  %s\n", timeText(e.AtMs), entryText(e))
	}
	if len(h.Entries) == 0 {
		fmt.Fprintln(out, "no history")
	}
}

func entryText(e api.HistoryEntry) string {
	switch {
	case e.Transition != nil:
		t := e.Transition
		what := stateText(*t) + ", rule " + t.Rule
		if t.WindowMs > 0 {
			what += ": " + useText(t.Used, t.Limit, "per "+millis(t.WindowMs), t.InFlight)
		}
		return what
	case e.Change == nil:
		return "unknown"
	}
	return changeText(*e.Change)
}
