package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/windows"
)

func newRules() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Look at rules files", Example: "  streamcounter rules check rules.yml", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	check := &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a rules file and show what it says",
		Long:    "Checks a rules file as a start or a reload would. An error names file, line and column, and the exit code is 1.",
		Example: "  streamcounter rules check rules.yml && kill -HUP $(pidof streamcounter)",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := windows.Load(args[0])
			if err != nil {
				return err
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rules.List())
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "RULE\tMATCH\tALGORITHM\tWINDOWS\tALERTS\tON ERROR\tSHADOW")
			for _, r := range rules.List() {
				var limits, alerts []string
				for _, win := range r.Windows {
					limits = append(limits, fmt.Sprintf("%d/%s", win.Limit, win.Per))
				}
				for _, pct := range r.Alerts {
					alerts = append(alerts, strconv.Itoa(pct)+"%")
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%t\n", r.Name, r.Match, r.Algorithm, strings.Join(limits, " "), strings.Join(alerts, " "), r.OnError, r.Shadow)
			}
			return w.Flush()
		},
	}
	check.Flags().Bool("json", false, "print the rules as JSON, defaults filled in")
	cmd.AddCommand(check)
	return cmd
}
