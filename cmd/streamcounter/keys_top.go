package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/english"
)

func newTop() *cobra.Command {
	var limit int
	cmd := &cobra.Command{Use: "top [RULE]", Short: "List the busiest keys of each rule, or of one",
		Long: `Lists the busiest keys of each rule, or of one, in this minute and the last one, over all
processes. It ranks them by units: those that checks asked for, admitted or not, and those
of events. The count uses bounded memory; if a key may have more, "at most" says how many.`,
		Example: `  streamcounter keys top api
  streamcounter keys top --json | jq '.rules[].keys[0]'`}
	path := func(args []string) string {
		path := "/v1/top?limit=" + strconv.Itoa(limit)
		if len(args) > 0 {
			path += "&rule=" + url.QueryEscape(args[0])
		}
		return path
	}
	showAnswer(cmd, path, func(top api.Top) error { return printTop(cmd.OutOrStdout(), top) })
	cmd.Flags().IntVar(&limit, "limit", 10, "maximum keys of a rule, up to 50")
	return cmd
}

func printTop(out io.Writer, top api.Top) error {
	if len(top.Rules) == 0 {
		fmt.Fprintln(out, "nothing happened in this minute and the last one")
	}
	for _, r := range top.Rules {
		fmt.Fprintf(out, "rule %s: %s units", r.Rule, english.Number(r.Units))
		if r.SinceMs > 0 {
			fmt.Fprintf(out, " since %s", timeText(r.SinceMs))
		}
		fmt.Fprintln(out)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, k := range r.Keys {
			more := ""
			if k.AtMost > k.Units {
				more = "at most " + english.Number(k.AtMost)
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\n", k.Key, english.Number(k.Units), more)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
