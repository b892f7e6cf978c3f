package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/rls"
	"github.com/streamcounter/streamcounter/windows"
)

func newRules() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Look at rules files", Example: "  streamcounter rules check rules.yml", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a rules file and limits, and show what they say",
		Long: `Checks a rules file, or the limits of --rls-config, or both together, as a start
or a reload would. An error names file, line and column, and the exit code is 1.`,
		Example: `  streamcounter rules check rules.yml && kill -HUP $(pidof streamcounter)
  streamcounter rules check --rls-config ratelimit/config/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := checkedRules(&options{cmd: cmd}, args)
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
	use(check, []string{"rls-config", "rls-tag", "rls-algorithm"})
	check.Flags().Bool("json", false, "print the rules as JSON, defaults filled in")
	cmd.AddCommand(check)
	return cmd
}

// checkedRules reads what check is told to: a rules file, limits, or both.
func checkedRules(o *options, files []string) (*windows.Rules, error) {
	config := o.text("rls-config")
	switch {
	case config == "" && len(files) == 0:
		return nil, errors.New("want a rules file, or --rls-config, or both")
	case config == "":
		return windows.Load(files[0])
	}
	source := rls.SourceConfig{Limits: config, Options: limitOptions(o)}
	if len(files) == 1 {
		source.Rules = files[0]
	}
	s, err := rls.NewSource(source)
	if err != nil {
		return nil, err
	}
	return s.Rules(), nil
}
