package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/wording"
)

const exitDiffer = 1

func newRulesDiff() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say how two rules files differ, and what follows",
		Long: `Says in words how two rules files differ, one change per line, and what follows for
keys and decisions once NEW is in force. Changes are rules that were added, removed,
renamed or moved (the first that matches decides), and fields that changed. A rule
with another name but the same match and windows was renamed. Comments and the way
a value is written do not count. A secret is compared by its path (hash_key) alone.
OLD or NEW can be - for standard input.

Exit code: 0 the rules are the same, 1 they differ, 2 error.`,
		Example: `  streamcounter rules diff rules.yml rules.new.yml
  git show HEAD:rules.yml | streamcounter rules diff - rules.yml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := givenRules(cmd, args[0])
			if err != nil {
				return err
			}
			after, err := givenRules(cmd, args[1])
			if err != nil {
				return err
			}
			for _, warning := range after.Warnings() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", warning)
			}
			changes := wording.Diff(before, after)
			if asJSON {
				if changes == nil {
					changes = []wording.Change{}
				}
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(changes); err != nil {
					return err
				}
			} else {
				for _, change := range changes {
					fmt.Fprintln(cmd.OutOrStdout(), change)
				}
			}
			switch {
			case len(changes) > 0:
				return exitError{code: exitDiffer}
			case !asJSON:
				fmt.Fprintln(cmd.OutOrStdout(), "the rules are the same")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the changes as JSON: kind, rule, text, follows")
	cmd.Annotations = exitTwo
	return cmd
}
