package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	envoyconfig "github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

func newRules() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Check and compare rules files",
		Example: `  streamcounter rules check rules.yml
  streamcounter rules diff old.yml new.yml`}
	cmd.AddCommand(newRulesCheck(), newRulesDiff())
	return cmd
}

func newRulesCheck() *cobra.Command {
	c := settings.New()
	var asJSON bool
	var keys string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a rules file and limits, and say what each rule means",
		Long: `Checks a rules file, or the limits of --rls-config, or both together, as a start
or a reload would, and says in words what each rule means. An error has file, line
and column, and the exit code is 1. Only the secret of hash_key is not read. FILE
can be - for standard input.

With --keys it also says which rule matches which keys of a list: how many, and the
first few. The list has one key per line; a repeated key counts once. A line that is
not a key is reported with its number and skipped; the exit code stays 0. --json prints
all keys. Overrides are ignored.

A rules file, of which the first rule that matches a key decides:

  rules:
    - name: api
      match: "user:*"
      windows:
        - {limit: 100, per: 1m}
        - {limit: 100000, per: month}
      alerts: [80%]
    - {name: stricter, match: "user:*", shadow: true, windows: [{limit: 20, per: 1m}]}`,
		Example: `  streamcounter rules check rules.yml && pkill -HUP -f 'streamcounter (serve|work)'
  streamcounter rules check rules.yml --keys keys.txt
  cut -d' ' -f1 access.log | sed 's/^/ip:/' | streamcounter rules check rules.yml --keys -
  streamcounter rules check --rls-config ratelimit/config/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.Rules.File = args[0]
			}
			if c.Rules.File == "-" && keys == "-" {
				return settings.UsageErrorf("FILE and --keys are both -: expected one of them")
			}
			rules, err := checkedRules(c.Rules, func(path string) (*windows.Rules, error) {
				return givenRules(cmd, path)
			})
			if err != nil {
				return err
			}
			for _, warning := range rules.Warnings() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", warning)
			}
			if cmd.Flags().Changed("keys") {
				return runRulesKeys(cmd, rules, keys, asJSON)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(fieldsOf(rules.List()))
			}
			printRules(cmd, rules)
			return nil
		},
	}
	c.Flags(cmd, "rules")
	cmd.Flags().StringVar(&keys, "keys", "", "say which rule matches which keys of this file (- for standard input)")
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print the rules as JSON in the words of a rules file, defaults filled in; with --keys, the keys of each rule")
	return cmd
}

func printRules(cmd *cobra.Command, rules *windows.Rules) {
	for _, r := range rules.List() {
		fmt.Fprintln(cmd.OutOrStdout(), wording.Rule(r))
	}
}

// loadRules reads a rules file, but not the secret of hash_key.
func loadRules(path string) (*windows.Rules, error) {
	return windows.Load(path, windows.WithoutHashKey)
}

// givenRules is loadRules, and "-" is standard input.
func givenRules(cmd *cobra.Command, path string) (*windows.Rules, error) {
	if path != "-" {
		return loadRules(path)
	}
	in, name, err := openInput(cmd, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, interrupted(cmd, fmt.Errorf("%s: %w", name, err))
	}
	return windows.Parse(name, data, windows.WithoutHashKey)
}

// checkedRules reads a rules file, limits, or both. A file alone is read with load.
func checkedRules(c settings.Rules, load func(path string) (*windows.Rules, error)) (*windows.Rules, error) {
	switch {
	case c.Limits == "" && c.File == "":
		return nil, settings.UsageErrorf("missing FILE: give a rules file, or --rls-config, or both")
	case c.Limits == "":
		return load(c.File)
	}
	s, err := envoyconfig.NewSource(envoyconfig.SourceConfig{Limits: c.Limits, Rules: c.File, Options: c.Options,
		RuleOptions: []windows.ParseOption{windows.WithoutHashKey}})
	if err != nil {
		return nil, err
	}
	return s.Rules(), nil
}
