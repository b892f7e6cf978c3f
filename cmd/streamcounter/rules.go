package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	envoyconfig "github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/windows"
)

func newRules() *cobra.Command {
	c := newConfig()
	var asJSON bool
	cmd := &cobra.Command{Use: "rules", Short: "Check rules files", Example: "  streamcounter rules check rules.yml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a rules file and limits, and list the rules",
		Long: `Checks a rules file, or the limits of --rls-config, or both together, as a start
or a reload would. An error names file, line and column, and the exit code is 1.`,
		Example: `  streamcounter rules check rules.yml && kill -HUP $(pidof streamcounter)
  streamcounter rules check --rls-config ratelimit/config/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.Rules.File = args[0]
			}
			rules, err := checkedRules(c.Rules)
			if err != nil {
				return err
			}
			for _, warning := range rules.Warnings() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", warning)
			}
			if asJSON {
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
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%t\n", r.Name, r.Match, r.Algorithm,
					strings.Join(limits, " "), strings.Join(alerts, " "), r.OnError, r.Shadow)
			}
			return w.Flush()
		},
	}
	c.flags(check, "rules")
	check.Flags().BoolVar(&asJSON, "json", false, "print the rules as JSON, defaults filled in")
	cmd.AddCommand(check)
	return cmd
}

// checkedRules reads a rules file, limits, or both.
func checkedRules(c rulesConfig) (*windows.Rules, error) {
	switch {
	case c.Limits == "" && c.File == "":
		return nil, errors.New("give a rules file, or --rls-config, or both")
	case c.Limits == "":
		return windows.Load(c.File)
	}
	s, err := envoyconfig.NewSource(envoyconfig.SourceConfig{Limits: c.Limits, Rules: c.File, Options: limitOptions(c)})
	if err != nil {
		return nil, err
	}
	return s.Rules(), nil
}

// words are the arguments of `rules check` for these rules.
func (c rulesConfig) words() string {
	words := c.File
	if c.Limits != "" {
		words = strings.TrimSpace(words + " --rls-config " + c.Limits)
	}
	return words
}
