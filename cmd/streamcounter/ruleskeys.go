package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/windows"
)

const maxExamples = 3

// ruleKeys are the keys of one rule, in the order of the list.
type ruleKeys struct {
	Rule   string   `json:"rule"`
	Match  string   `json:"match"`
	Shadow bool     `json:"shadow"`
	Keys   []string `json:"keys"`
}

// keysByRule holds the keys of a list by the rule that matches them.
type keysByRule struct {
	Rules    []*ruleKeys `json:"rules"`   // in the order of the rules
	NoRule   []string    `json:"no_rule"` // keys that no rule decides; a shadow may watch them
	BadLines []badLine   `json:"bad_lines"`

	rules *windows.Rules
	named map[string]*ruleKeys // rule → its keys
	seen  map[string]bool      // keys
}

type badLine struct {
	Line  int    `json:"line"`
	Error string `json:"error"`
}

func newKeysByRule(rules *windows.Rules) *keysByRule {
	k := &keysByRule{NoRule: []string{}, BadLines: []badLine{}, rules: rules, named: map[string]*ruleKeys{},
		seen: map[string]bool{}}
	for _, r := range rules.List() {
		k.named[r.Name] = &ruleKeys{Rule: r.Name, Match: r.Match, Shadow: r.Shadow, Keys: []string{}}
		k.Rules = append(k.Rules, k.named[r.Name])
	}
	return k
}

// add takes one line of the list, or why it could not be read. Blank lines are skipped.
func (k *keysByRule) add(n int, key string, err error) {
	if err == nil && (key == "" || k.seen[key]) {
		return
	}
	if err == nil {
		err = api.ValidateKey(key)
	}
	if err != nil {
		k.BadLines = append(k.BadLines, badLine{n, err.Error()})
		return
	}
	k.seen[key] = true
	plan := k.rules.Match(key)
	taken := false
	for _, r := range plan.Rules() {
		taken = taken || !r.Shadow || r.Exclusive
		k.named[r.Name].Keys = append(k.named[r.Name].Keys, key)
	}
	if !taken {
		k.NoRule = append(k.NoRule, key)
	}
}

func runRulesKeys(cmd *cobra.Command, rules *windows.Rules, path string, asJSON bool) error {
	in := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("--keys: %w", err)
		}
		defer f.Close()
		in = f
	} else {
		path = "standard input"
	}
	keys := newKeysByRule(rules)
	err := eachLine(cmd.Context(), in, cmd.ErrOrStderr(), func(n int, line string, err error) error {
		keys.add(n, line, err)
		return nil
	})
	if err != nil {
		return interrupted(cmd, fmt.Errorf("--keys: %w", err))
	}
	for _, bad := range keys.BadLines {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s:%d: %s\n", path, bad.Line, bad.Error)
	}
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(keys)
	}
	printRules(cmd, rules)
	return keys.print(cmd.OutOrStdout())
}

func (k *keysByRule) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, keys []string) {
		first := strings.Join(keys[:min(len(keys), maxExamples)], ", ")
		if len(keys) > maxExamples {
			first += ", ..."
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, english.Number(int64(len(keys))), first)
	}
	fmt.Fprintln(w, "\nRULE\tKEYS\tFIRST")
	for _, r := range k.Rules {
		name := r.Rule
		if r.Shadow {
			name += " (shadow)"
		}
		row(name, r.Keys)
	}
	row("no rule", k.NoRule)
	return w.Flush()
}
